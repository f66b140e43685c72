# cmake --install: the binary needs none of the other files; they are for editors, shells and readers.
include(GNUInstallDirs)

install(TARGETS moonwire RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

set(share ${CMAKE_INSTALL_DATADIR}/moonwire)
install(DIRECTORY lua/moonwire DESTINATION ${share}/lua OPTIONAL)
install(DIRECTORY handlers DESTINATION ${share} OPTIONAL)
# The demo scripts stay executable; what a run left behind stays here.
install(DIRECTORY examples DESTINATION ${share} USE_SOURCE_PERMISSIONS OPTIONAL PATTERN data EXCLUDE)

install(FILES docs/man/moonwire.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
set(doc ${CMAKE_INSTALL_DATADIR}/doc/moonwire)
install(FILES LICENSE CHANGELOG.md DESTINATION ${doc})
install(FILES README.md DESTINATION ${doc} OPTIONAL)
install(DIRECTORY docs DESTINATION ${doc} PATTERN man EXCLUDE) # a folder of its own: it has a README.md too

# The binary writes its own completions, so they cannot disagree with it. A cross-built one cannot run here.
function(install_completion shell file dir)
  set(made ${PROJECT_BINARY_DIR}/completion/${file})
  install(CODE "
    file(MAKE_DIRECTORY \"${PROJECT_BINARY_DIR}/completion\")
    execute_process(COMMAND \"$<TARGET_FILE:moonwire>\" completion ${shell} OUTPUT_FILE \"${made}\"
                    RESULT_VARIABLE code TIMEOUT 20)
    if(NOT code EQUAL 0)
      message(FATAL_ERROR \"moonwire completion ${shell}: \${code}\")
    endif()")
  install(FILES ${made} DESTINATION ${dir})
endfunction()

if(NOT CMAKE_CROSSCOMPILING)
  install_completion(bash moonwire ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install_completion(zsh _moonwire ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
endif()
