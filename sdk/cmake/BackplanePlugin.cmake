# BackplanePlugin.cmake - backplane_add_plugin(): a plugin with the flags that every plugin needs.
# Used by the plugins of this repository, by the tests, and by other projects after find_package(Backplane).
# SPDX-License-Identifier: MIT
include_guard()

set(BACKPLANE_PLUGIN_MAP ${CMAKE_CURRENT_LIST_DIR}/backplane-plugin.map)

# CUDA, where the project wants it: -DBP_CUDA=OFF leaves every plugin with CUDA files out, ON makes a missing nvcc an error,
# AUTO (also when unset) builds them where nvcc is. -DBP_CUDA_ARCHS=90 replaces what all plugins are built for, for quick
# builds: a list of 90, 120a, ... for machine code and 90-virtual for PTX, which drivers translate for later chips.
set(BACKPLANE_CUDA_ARCHS_DEFAULT 90 120a 90-virtual)
if(NOT DEFINED BP_CUDA OR BP_CUDA) # AUTO is no false value
  find_program(BACKPLANE_NVCC nvcc PATHS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(BACKPLANE_NVCC)
    get_filename_component(backplane_cuda ${BACKPLANE_NVCC} REALPATH)
    get_filename_component(backplane_cuda ${backplane_cuda} DIRECTORY)
    get_filename_component(backplane_cuda ${backplane_cuda} DIRECTORY)
    # What belongs to this nvcc, before any other. Another toolkit's headers or run time would not fit its code.
    set(backplane_cuda_libs ${backplane_cuda}/lib64 ${backplane_cuda}/lib ${backplane_cuda}/targets/x86_64-linux/lib)
    find_library(BACKPLANE_CUDART_STATIC libcudart_static.a NO_DEFAULT_PATH PATHS ${backplane_cuda_libs})
    find_library(BACKPLANE_CUDART_STATIC libcudart_static.a)
    find_path(BACKPLANE_CUDA_INCLUDE cuda_runtime_api.h NO_DEFAULT_PATH
              PATHS ${backplane_cuda}/include ${backplane_cuda}/targets/x86_64-linux/include)
    find_path(BACKPLANE_CUDA_INCLUDE cuda_runtime_api.h)
    # For LIBS ${BACKPLANE_CUBLAS}: linked by its own name (libcublas.so.13) and found by the system's loader; no path of
    # this machine gets into the plugin.
    find_library(BACKPLANE_CUBLAS cublas NO_DEFAULT_PATH PATHS ${backplane_cuda_libs})
    find_library(BACKPLANE_CUBLAS cublas)
    mark_as_advanced(BACKPLANE_CUDART_STATIC BACKPLANE_CUDA_INCLUDE BACKPLANE_CUBLAS)
  elseif("${BP_CUDA}" STREQUAL "ON")
    message(FATAL_ERROR "BP_CUDA is ON and no nvcc was found; put it on PATH or set BACKPLANE_NVCC to it")
  endif()
  mark_as_advanced(BACKPLANE_NVCC)
endif()

# backplane_add_plugin(NAME SOURCES file.c ... [CUDA file.cu ...] [CUDA_ARCHS 90 120a ...] [INCLUDES folder ...]
#                      [DEFINITIONS name=value ...] [LIBS library ...] [OUTPUT_FOLDER folder] [NO_INSTALL])
#
# Makes target backplane-NAME: the file backplane-NAME.so, which exports bp_plugin_query_v1 and nothing else, leaves no
# symbol undefined, binds all of them when it is loaded, and finds libraries that lie beside it ($ORIGIN). C is C11, C++
# is C++17, both without extensions. `cmake --install` puts it into lib/backplane/plugins.
#
# CUDA files are compiled by nvcc (the project need not enable the language) for CUDA_ARCHS, by default sm_90, sm_120a and
# PTX of compute_90, and the CUDA run time is linked in statically. C files see its headers. What ptxas says about
# registers, shared memory and spills is kept beside each object: backplane-NAME.cuda/FILE.cu.ptxas in the build folder.
# Without nvcc, or a library that LIBS names as NOTFOUND, no target is made and a message says so: ask
# if(TARGET backplane-NAME).
function(backplane_add_plugin name)
  cmake_parse_arguments(P "NO_INSTALL" "OUTPUT_FOLDER" "SOURCES;CUDA;CUDA_ARCHS;INCLUDES;DEFINITIONS;LIBS" ${ARGN})
  if(P_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "backplane_add_plugin(${name}): unknown arguments ${P_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT name MATCHES "^[a-z0-9_]+$")
    message(FATAL_ERROR "backplane_add_plugin: '${name}' is no name of a plugin; use a-z, 0-9 and _")
  endif()
  if(NOT P_SOURCES)
    message(FATAL_ERROR "backplane_add_plugin(${name}): no SOURCES; the file with BP_PLUGIN(...) goes there")
  endif()
  set(target backplane-${name})
  set(objects "")
  if(P_CUDA)
    _backplane_cuda_objects(objects ${name} "${P_CUDA}" "${P_CUDA_ARCHS}" "${P_INCLUDES}" "${P_DEFINITIONS}")
    if(NOT objects OR P_LIBS MATCHES "NOTFOUND")
      set(why "no nvcc with its static run time was found")
      if(P_LIBS MATCHES "NOTFOUND")
        set(why "a library it needs was not found (${P_LIBS})")
      elseif(DEFINED BP_CUDA AND NOT BP_CUDA)
        set(why "BP_CUDA is OFF")
      endif()
      message(STATUS "${target} is not built: it has CUDA sources, and ${why}")
      return()
    endif()
  endif()

  add_library(${target} MODULE ${P_SOURCES} ${objects})
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${target} SUFFIX .so
    C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
    CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN"
    LINK_DEPENDS ${BACKPLANE_PLUGIN_MAP})
  if(P_OUTPUT_FOLDER)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${P_OUTPUT_FOLDER})
  elseif(BACKPLANE_PLUGIN_OUTPUT_FOLDER)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${BACKPLANE_PLUGIN_OUTPUT_FOLDER})
  endif()
  target_include_directories(${target} PRIVATE ${P_INCLUDES})
  target_compile_definitions(${target} PRIVATE ${P_DEFINITIONS})
  # -fno-gnu-unique: a unique symbol would be shared with other plugins that were built from the same template code.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>)
  target_link_libraries(${target} PRIVATE Backplane::plugin ${P_LIBS})
  target_link_options(${target} PRIVATE -Wl,--version-script=${BACKPLANE_PLUGIN_MAP} -Wl,-z,now
                      -Wl,--enable-new-dtags -Wl,--build-id)
  if(NOT BP_SANITIZE) # the run time of a sanitizer is in the program, and undefined here
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  if(P_CUDA)
    target_include_directories(${target} SYSTEM PRIVATE ${BACKPLANE_CUDA_INCLUDE})
    # What nvcc makes of a kernel's host side needs the C++ run time, even where a C compiler links.
    target_link_libraries(${target} PRIVATE ${BACKPLANE_CUDART_STATIC} stdc++ rt dl pthread)
  endif()
  if(NOT P_NO_INSTALL)
    install(TARGETS ${target} LIBRARY DESTINATION lib/backplane/plugins)
  endif()
endfunction()

# Objects of CUDA files, one nvcc call each; nothing without nvcc.
function(_backplane_cuda_objects out name files archs includes definitions)
  set(${out} "" PARENT_SCOPE)
  if((DEFINED BP_CUDA AND NOT BP_CUDA) OR NOT BACKPLANE_NVCC OR NOT BACKPLANE_CUDART_STATIC OR NOT BACKPLANE_CUDA_INCLUDE)
    return()
  endif()
  if(BP_CUDA_ARCHS)
    set(archs ${BP_CUDA_ARCHS})
  elseif(NOT archs)
    set(archs ${BACKPLANE_CUDA_ARCHS_DEFAULT})
  endif()
  set(flags -std=c++17 -O3 -Xptxas=-v -Werror=cross-execution-space-call,reorder,default-stream-launch
            -Xcompiler=-fPIC,-fvisibility=hidden,-fno-gnu-unique)
  if(BP_WERROR)
    list(APPEND flags -Werror=all-warnings)
  endif()
  foreach(arch ${archs})
    if(arch MATCHES "^([0-9]+[af]?)-virtual$")
      list(APPEND flags -gencode arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1})
    elseif(arch MATCHES "^[0-9]+[af]?$")
      list(APPEND flags -gencode arch=compute_${arch},code=sm_${arch})
    else()
      message(FATAL_ERROR "backplane_add_plugin(${name}): '${arch}' is no CUDA architecture; write 90, 120a, 90-virtual")
    endif()
  endforeach()
  foreach(folder ${includes})
    get_filename_component(folder ${folder} ABSOLUTE)
    list(APPEND flags -I${folder})
  endforeach()
  foreach(definition ${definitions})
    list(APPEND flags -D${definition})
  endforeach()
  set(headers $<TARGET_PROPERTY:Backplane::plugin,INTERFACE_INCLUDE_DIRECTORIES>)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/backplane-${name}.cuda)
  # nvcc's words go to a file; all of them are shown when it fails, and warnings in any case. No semicolon in the script:
  # COMMAND_EXPAND_LISTS would cut it there.
  set(run [=[log=$1 && shift && ("$@" 2>"$log" || (cat "$log" >&2 && false)) && (grep -i warning "$log" >&2 || true)]=])
  set(made "")
  foreach(file ${files})
    get_filename_component(path ${file} ABSOLUTE)
    get_filename_component(base ${file} NAME)
    set(object ${folder}/${base}.o)
    add_custom_command(OUTPUT ${object} BYPRODUCTS ${folder}/${base}.ptxas
      COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
      COMMAND sh -c "${run}" sh ${folder}/${base}.ptxas ${BACKPLANE_NVCC} ${flags} "-I$<JOIN:${headers},;-I>"
              -MD -MF ${object}.d -c ${path} -o ${object}
      DEPENDS ${path} DEPFILE ${object}.d COMMAND_EXPAND_LISTS VERBATIM
      COMMENT "nvcc ${base}")
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    list(APPEND made ${object})
  endforeach()
  set(${out} ${made} PARENT_SCOPE)
endfunction()
