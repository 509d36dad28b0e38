# Install rules, the CMake package and the pkg-config file. As a part of another project nothing is installed
# unless it asks for it.
option(FLASHWRIGHT_INSTALL "Install flashwright" ${flashwright_IS_TOP_LEVEL})

# The library looks for its plugin beside itself. Whoever builds the library needs the plugin too.
if(TARGET flashwright-cpu)
  if(NOT CMAKE_LIBRARY_OUTPUT_DIRECTORY)
    set_target_properties(flashwright-cpu PROPERTIES
      LIBRARY_OUTPUT_DIRECTORY $<TARGET_PROPERTY:flashwright,BINARY_DIR>)
  endif()
  add_dependencies(flashwright flashwright-cpu)
endif()

if(FLASHWRIGHT_INSTALL)
  include(CMakePackageConfigHelpers)
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashwright)

  set(namelink "")
  if(SKBUILD)
    set(namelink NAMELINK_SKIP)  # a wheel holds no symbolic links; find_package does without
  endif()
  install(TARGETS flashwright EXPORT flashwrightTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${namelink}
    PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flashwright)
  if(TARGET flashwright-cpu)
    install(TARGETS flashwright-cpu LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
  install(EXPORT flashwrightTargets NAMESPACE flashwright:: DESTINATION ${package_dir})

  set(flashwright_has_cpu FALSE)
  if(TARGET flashwright-cpu)
    set(flashwright_has_cpu TRUE)
  endif()
  configure_package_config_file(
    ${CMAKE_CURRENT_LIST_DIR}/flashwrightConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/flashwrightConfig.cmake
    INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/flashwrightConfigVersion.cmake
    VERSION ${flashwright_VERSION} COMPATIBILITY SameMinorVersion)
  install(FILES
    ${CMAKE_CURRENT_BINARY_DIR}/flashwrightConfig.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/flashwrightConfigVersion.cmake
    DESTINATION ${package_dir})

  # Paths relative to the file itself, so that an installed tree may be moved.
  file(RELATIVE_PATH flashwright_pc_to_prefix
    ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  configure_file(${CMAKE_CURRENT_LIST_DIR}/flashwright.pc.in ${CMAKE_CURRENT_BINARY_DIR}/flashwright.pc @ONLY)
  if(NOT SKBUILD)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashwright.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  endif()
  install(FILES ${flashwright_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
endif()
