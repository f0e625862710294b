// Package filesum computes the SHA-256 of files that are too large for memory, such as images and their parts. It reads
// them and writes nothing.
package filesum

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
)

// SHA256 returns a file's hash in hexadecimal digits, and its size in bytes. The error names the file.
func SHA256(path string) (sum string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), size, err
}
