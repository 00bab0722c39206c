"""The papers, one file each: every module registers one."""
