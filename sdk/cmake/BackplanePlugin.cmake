# BackplanePlugin.cmake - backplane_add_plugin(): a plugin with the flags that every plugin needs.
# Used by the plugins of this repository, by the tests, and by other projects after find_package(Backplane).
# SPDX-License-Identifier: MIT
include_guard()

set(BACKPLANE_PLUGIN_MAP ${CMAKE_CURRENT_LIST_DIR}/backplane-plugin.map)

# backplane_add_plugin(NAME SOURCES file.c ... [CUDA file.cu ...] [CUDA_ARCHS 90 120a ...] [INCLUDES folder ...]
#                      [DEFINITIONS name=value ...] [LIBS library ...] [OUTPUT_FOLDER folder] [NO_INSTALL])
#
# Makes target backplane-NAME: the file backplane-NAME.so, which exports bp_plugin_query_v1 and nothing else, leaves no
# symbol undefined, binds all of them when it is loaded, and finds libraries that lie beside it ($ORIGIN). C is C11, C++
# is C++17, both without extensions. `cmake --install` puts it into lib/backplane/plugins.
#
# CUDA files are compiled by nvcc (the project need not enable the language) to machine code for CUDA_ARCHS, and the CUDA
# run time is linked in statically. Without nvcc no target is made and a message says so: ask if(TARGET backplane-NAME).
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
    if(NOT objects)
      message(STATUS "${target} is not built: it has CUDA sources, and no nvcc was found")
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
    # What nvcc makes of a kernel's host side needs the C++ run time, even where a C compiler links.
    target_link_libraries(${target} PRIVATE ${BACKPLANE_CUDART_STATIC} stdc++ rt dl pthread)
  endif()
  if(NOT P_NO_INSTALL)
    install(TARGETS ${target} LIBRARY DESTINATION lib/backplane/plugins)
  endif()
endfunction()

# Objects of CUDA files, one nvcc call each; nothing without nvcc. Also finds the static CUDA run time.
function(_backplane_cuda_objects out name files archs includes definitions)
  set(${out} "" PARENT_SCOPE)
  find_program(BACKPLANE_NVCC nvcc PATHS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT BACKPLANE_NVCC)
    return()
  endif()
  get_filename_component(cuda_bin ${BACKPLANE_NVCC} REALPATH)
  get_filename_component(cuda_bin ${cuda_bin} DIRECTORY)
  # The one that belongs to this nvcc, before any other.
  find_library(BACKPLANE_CUDART_STATIC libcudart_static.a NO_DEFAULT_PATH
               PATHS ${cuda_bin}/../lib64 ${cuda_bin}/../lib ${cuda_bin}/../targets/x86_64-linux/lib)
  find_library(BACKPLANE_CUDART_STATIC libcudart_static.a)
  if(NOT BACKPLANE_CUDART_STATIC)
    message(STATUS "nvcc is there, but libcudart_static.a was not found; set BACKPLANE_CUDART_STATIC to its path")
    return()
  endif()
  if(NOT archs)
    set(archs 90 120a)
  endif()
  set(flags -std=c++17 -O3 -Xcompiler=-fPIC,-fvisibility=hidden,-fno-gnu-unique)
  foreach(arch ${archs})
    list(APPEND flags -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  foreach(folder ${includes})
    get_filename_component(folder ${folder} ABSOLUTE)
    list(APPEND flags -I${folder})
  endforeach()
  foreach(definition ${definitions})
    list(APPEND flags -D${definition})
  endforeach()
  set(headers $<TARGET_PROPERTY:Backplane::plugin,INTERFACE_INCLUDE_DIRECTORIES>)
  set(made "")
  foreach(file ${files})
    get_filename_component(path ${file} ABSOLUTE)
    get_filename_component(base ${file} NAME)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/backplane-${name}.cuda/${base}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/backplane-${name}.cuda
      COMMAND ${BACKPLANE_NVCC} ${flags} "-I$<JOIN:${headers},;-I>" -MD -MF ${object}.d -c ${path} -o ${object}
      DEPENDS ${path} DEPFILE ${object}.d COMMAND_EXPAND_LISTS VERBATIM
      COMMENT "nvcc ${base}")
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    list(APPEND made ${object})
  endforeach()
  set(${out} ${made} PARENT_SCOPE)
endfunction()
