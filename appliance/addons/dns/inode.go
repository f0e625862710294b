package dns

import (
	"os"
	"syscall"
)

// inode tells a file from one that was renamed over it within the same tick.
func inode(info os.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
