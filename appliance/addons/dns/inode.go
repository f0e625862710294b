package dns

import (
	"os"
	"syscall"
)

// inode distinguishes a file from one that replaced it within the same tick.
func inode(info os.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
