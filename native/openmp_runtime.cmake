# Installs a copy of the OpenMP runtime beside the module, which looks for it there.
#
# The name stays libgomp.so.1: the loader takes the runtime that the process has under this name before it looks for
# a file, so that the module shares the threads of a torch that brings a libgomp.so.1. A torch whose copy has another
# name, on a system without the library, leaves the module to this one.
find_library(GNNSPARSE_OPENMP_RUNTIME NAMES libgomp.so.1 PATHS ${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES} REQUIRED)
file(REAL_PATH "${GNNSPARSE_OPENMP_RUNTIME}" GNNSPARSE_OPENMP_FILE)
install(FILES "${GNNSPARSE_OPENMP_FILE}" DESTINATION gnnsparse RENAME libgomp.so.1
        PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set_target_properties(_native PROPERTIES INSTALL_RPATH "$ORIGIN")
