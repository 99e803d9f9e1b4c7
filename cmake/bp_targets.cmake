# Flags shared by all targets, and bp_room(): one static library per room of core/.
include_guard()
find_package(Threads REQUIRED)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# -ffp-contract=off: the reference backend gives the same bits on every x86-64, with or without FMA.
add_compile_options(-Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla
                    -Wformat=2 -Wundef -fvisibility=hidden -ffp-contract=off)
add_compile_definitions(_POSIX_C_SOURCE=200809L _DEFAULT_SOURCE)
if(BP_WERROR)
  add_compile_options(-Werror)
endif()
if(BP_SANITIZE)
  add_compile_options(-fsanitize=${BP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${BP_SANITIZE})
  add_compile_definitions(BP_SANITIZED=1)
endif()

if(BP_COVERAGE)
  if(NOT CMAKE_C_COMPILER_ID STREQUAL "GNU")
    message(FATAL_ERROR "BP_COVERAGE=ON needs gcc: scripts/lib/coverage.py reads what gcov prints")
  endif()
  add_compile_definitions(BP_COVERAGE=1)
endif()

# bp_room(NAME DEPS other rooms ... LIBS system libraries ...): core/NAME/*.c as library bp_NAME.
# DEPS is the dependency law in executable form: a room links only what it names.
function(bp_room name)
  cmake_parse_arguments(R "" "" "DEPS;LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.c)
  if(NOT sources)
    return()
  endif()
  add_library(bp_${name} STATIC ${sources})
  target_include_directories(bp_${name} PUBLIC ${CMAKE_SOURCE_DIR}/core ${CMAKE_SOURCE_DIR}/core/include)
  foreach(dep ${R_DEPS})
    target_link_libraries(bp_${name} PUBLIC bp_${dep})
  endforeach()
  target_link_libraries(bp_${name} PUBLIC ${R_LIBS})
  # The rooms only: tests and tools are not counted. Threads may lose counts to each other, but not turn one into 0;
  # atomic counters cost twenty times the time of the hot loops.
  if(BP_COVERAGE)
    target_compile_options(bp_${name} PRIVATE --coverage -fprofile-update=single)
    target_link_options(bp_${name} PUBLIC --coverage)
  endif()
endfunction()
