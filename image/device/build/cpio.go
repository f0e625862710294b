package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// writeCPIO packs a tree in the kernel's initrd format (newc), all owned by root and with one time, so that the same
// tree gives the same bytes. Contents begin at a multiple of align, 4 or more: names are filled up with zeros.
func writeCPIO(w io.Writer, dir string, t time.Time, align int) error {
	n, at := 0, 0
	entry := func(name string, mode uint32, content []byte) error {
		n++
		const head = 110
		for name += "\x00"; (at+head+len(name)+3)&^3%align != 0 && len(content) > 0; {
			name += "\x00"
		}
		var out bytes.Buffer
		fmt.Fprintf(&out, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s", n, mode, 0, 0, 1, uint32(t.Unix()), len(content), 0, 0, 0, 0, len(name), 0, name)
		pad(&out)
		out.Write(content)
		pad(&out)
		at += out.Len()
		_, err := w.Write(out.Bytes())
		return err
	}
	if err := each(dir, func(rel string, info fs.FileInfo) error {
		path := filepath.Join(dir, rel)
		switch mode := uint32(info.Mode().Perm()); {
		case info.IsDir():
			return entry(rel, 0o040000|mode, nil)
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return entry(rel, 0o120777, []byte(to))
		default:
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return entry(rel, 0o100000|mode, content)
		}
	}); err != nil {
		return err
	}
	return entry("TRAILER!!!", 0, nil)
}

func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}
