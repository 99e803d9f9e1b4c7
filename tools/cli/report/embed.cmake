# embed.cmake - the page of the report as one C array: the style sheet and the program are put into the HTML, and their
# hashes into its Content-Security-Policy, so that a browser runs these two texts and no others.
# cmake -DFROM=folder -DTO=file.c -P embed.cmake
# SPDX-License-Identifier: MIT
cmake_policy(VERSION 3.25)
foreach(kind html css js)
  file(READ ${FROM}/page.${kind} ${kind})
  if(NOT kind STREQUAL "html" AND "${${kind}}" MATCHES "@@|</")
    message(FATAL_ERROR "page.${kind} holds '@@' or '</', which would end it or start a place to fill in")
  endif()
endforeach()

# Base64 of the SHA-256 of a text, as a policy wants it; CMake only gives hexadecimal digits.
function(policy_hash text out)
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(SHA256 hex "${text}")
  set(result "")
  foreach(at RANGE 0 59 6)
    string(SUBSTRING ${hex} ${at} 6 group)
    math(EXPR bits "0x${group}")
    foreach(shift 18 12 6 0)
      math(EXPR index "(${bits} >> ${shift}) & 63")
      string(SUBSTRING "${digits}" ${index} 1 digit)
      string(APPEND result "${digit}")
    endforeach()
  endforeach()
  # 32 bytes are ten groups of three and two more.
  string(SUBSTRING ${hex} 60 4 group)
  math(EXPR bits "0x${group} << 2")
  foreach(shift 12 6 0)
    math(EXPR index "(${bits} >> ${shift}) & 63")
    string(SUBSTRING "${digits}" ${index} 1 digit)
    string(APPEND result "${digit}")
  endforeach()
  set(${out} "${result}=" PARENT_SCOPE)
endfunction()

policy_hash("${css}" css_hash)
policy_hash("${js}" js_hash)
foreach(kind css js css_hash js_hash)
  string(FIND "${html}" "@@${kind}@@" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "page.html has no place @@${kind}@@")
  endif()
  string(REPLACE "@@${kind}@@" "${${kind}}" html "${html}")
endforeach()

get_filename_component(folder ${TO} DIRECTORY)
file(WRITE ${folder}/ab_page.html "${html}")
file(READ ${folder}/ab_page.html bytes HEX)
string(LENGTH "${bytes}" n)
math(EXPR n "${n} / 2")
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${TO} "/* Made by tools/cli/report/embed.cmake. SPDX-License-Identifier: MIT */
#include \"ab_html_parts.h\"

const size_t cli_ab_page_bytes = ${n};
const unsigned char cli_ab_page[] = {
${bytes}};
")
