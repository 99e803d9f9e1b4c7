# Installs the pages under <prefix>/share/doc/backplane with the folders that they have in the source tree, so that they find
# each other. What else they link to lies elsewhere in an installed tree: headers, the INI, the templates; such links are
# rewritten. Run by `cmake --install`; SOURCE and DESTINATION (relative to the prefix) are set by the caller.
file(GLOB_RECURSE pages RELATIVE ${SOURCE} ${SOURCE}/docs/*.md)
foreach(page README.md CHANGELOG.md CONTRIBUTING.md THIRD_PARTY.md ${pages})
  file(READ ${SOURCE}/${page} text)
  get_filename_component(folder ${page} DIRECTORY)
  # The way from the page up to the top of the source tree, and from there on to the prefix.
  string(REGEX REPLACE "[^/]+" ".." up "${folder}")
  if(up)
    string(APPEND up "/")
  endif()
  string(REGEX REPLACE "[^/]+" ".." out "${DESTINATION}")
  string(REPLACE "](${up}core/include/" "](${up}${out}/include/" text "${text}")
  string(REPLACE "](${up}etc/" "](${up}${out}/share/backplane/" text "${text}")
  string(REPLACE "](${up}sdk/templates" "](${up}${out}/share/backplane/templates" text "${text}")
  set(to ${CMAKE_INSTALL_PREFIX}/${DESTINATION}/${page})
  message(STATUS "Installing: $ENV{DESTDIR}${to}")
  file(WRITE "$ENV{DESTDIR}${to}" "${text}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${to})
endforeach()
# The raw rows behind the pages on speed.
file(GLOB_RECURSE rows RELATIVE ${SOURCE} ${SOURCE}/docs/*.json)
foreach(file ${rows})
  set(to ${CMAKE_INSTALL_PREFIX}/${DESTINATION}/${file})
  message(STATUS "Installing: $ENV{DESTDIR}${to}")
  configure_file(${SOURCE}/${file} "$ENV{DESTDIR}${to}" COPYONLY)
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${to})
endforeach()
