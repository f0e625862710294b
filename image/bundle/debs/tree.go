package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"path/filepath"
)

// tree is the files of several packages, by path without the leading slash.
type tree map[string]node

type node struct {
	content []byte
	link    string
}

func (t tree) read(deb string) error {
	cmd := exec.Command("dpkg-deb", "--fsys-tarfile", deb)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := t.add(out); err != nil {
		cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	}
	return cmd.Wait()
}

func (t tree) add(archive io.Reader) error {
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, archive) // the padding: dpkg-deb must not get a broken pipe
			return err
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			content, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			t[name] = node{content: content}
		case tar.TypeSymlink:
			t[name] = node{link: h.Linkname}
		}
	}
}

// file returns the content at a path, through links. Libraries are below /lib or /usr/lib, depending on the package.
func (t tree) file(name string) ([]byte, error) {
	for range 8 {
		n, ok := t[name]
		if !ok {
			n, ok = t[path.Join("usr", name)]
		}
		switch {
		case !ok:
			return nil, fmt.Errorf("no package has %s; %s", name, renew)
		case n.link == "":
			return n.content, nil
		case filepath.IsAbs(n.link):
			name = n.link[1:]
		default:
			name = path.Join(path.Dir(name), n.link)
		}
	}
	return nil, fmt.Errorf("%s is a link without end", name)
}
