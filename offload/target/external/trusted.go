package external

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxLinks bounds the symbolic links of a path, as the kernel does.
const maxLinks = 40

// Trusted refuses a file that anybody but root and this process's own user can change, or replace by changing a folder
// above it: who can, chooses what runs, what is sent away, and where to.
func Trusted(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	asked, at, links := path, "/", 0
	rest := parts(path)
	if err := unchanged("/", asked, false); err != nil {
		return err
	}
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		if err := unchanged(next, asked, len(rest) == 0); err != nil {
			return err
		}
		to, err := os.Readlink(next)
		if err != nil { // no link
			at = next
			continue
		}
		if links++; links > maxLinks {
			return fmt.Errorf("%s: too many symbolic links; name the file itself", asked)
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(parts(to), rest...)
	}
	if info, err := os.Lstat(at); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file; name one", asked)
	}
	return nil
}

func parts(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" || s == "." })
}

// unchanged judges one step of a path. last: it is the file.
func unchanged(step, asked string, last bool) error {
	info, err := os.Lstat(step)
	if err != nil {
		return err
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	link, sticky := info.Mode()&fs.ModeSymlink != 0, info.IsDir() && info.Mode()&fs.ModeSticky != 0
	foreign := owner != 0 && owner != os.Geteuid()
	writable := info.Mode()&0o022 != 0 && !link && !sticky
	mode, to := "600", "/etc/rivulet/"
	if file, err := os.Stat(asked); err == nil && file.Mode()&0o111 != 0 {
		mode, to = "755", "/usr/local/bin/"
	}
	switch {
	case foreign && last && !link:
		return fmt.Errorf("%s belongs to a user (%d) who may change it at any time; sudo chown root '%s'", step, owner, step)
	case foreign:
		return fmt.Errorf("%s belongs to a user (%d) who may replace %s at any time; name a copy: sudo install -D -o root -g root -m %s '%s' '%s'", step, owner, asked, mode, asked, to+filepath.Base(asked))
	case writable && last:
		return fmt.Errorf("%s may be changed by others (mode %04o); sudo chmod go-w '%s'", step, info.Mode().Perm(), step)
	case writable:
		return fmt.Errorf("others may replace %s: they may write to %s (mode %04o); sudo chmod go-w '%s'", asked, step, info.Mode().Perm(), step)
	}
	return nil
}
