// Package archive is the stream format of a device's backup and a virtual cluster's snapshot: tar in zstd (in age, with
// a passphrase), with a checksum of all members last, so that a truncated stream is detected.
package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

const (
	// last is the name of the last member: one checksum of all names and contents, whose size does not depend on what is
	// in the stream.
	last = "SHA256"
	// listed is the last member of streams of v0.1.0: a line for each file.
	listed = "SHA256SUMS"
	// maxListed bounds it, bytes.
	maxListed = 64 << 20
)

// Writer writes a stream, which is valid only after a successful Close.
type Writer struct {
	tar     *tar.Writer
	closers []io.Closer
	sum     hash.Hash // of all members
	created time.Time
}

// NewWriter begins a stream, encrypted if there is a passphrase.
func NewWriter(out io.Writer, passphrase string, created time.Time) (*Writer, error) {
	w := &Writer{created: created, sum: sha256.New()}
	if passphrase != "" {
		sealed, err := Seal(out, passphrase)
		if err != nil {
			return nil, err
		}
		out, w.closers = sealed, append(w.closers, sealed)
	}
	// For boards with little memory.
	packed, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		return nil, err
	}
	w.tar = tar.NewWriter(packed)
	w.closers = append(w.closers, packed, w.tar)
	return w, nil
}

// Header adds a folder or a link.
func (w *Writer) Header(h *tar.Header) error {
	h.Format = tar.FormatPAX
	h.Uname, h.Gname = "", "" // numbers count; names differ between hosts
	if h.Typeflag != tar.TypeReg {
		add(w.sum, h, nil)
	}
	return w.tar.WriteHeader(h)
}

// add adds a member to the checksum of all, with the checksum of its content.
func add(all io.Writer, h *tar.Header, content []byte) {
	fmt.Fprintf(all, "%d %d %s %d %s %x\n", h.Typeflag, len(h.Name), h.Name, len(h.Linkname), h.Linkname, content)
}

// File adds h.Size bytes of content. A growing file is cut at that size, a shrinking one is padded with zeros, as tar
// does.
func (w *Writer) File(h *tar.Header, content io.Reader) error {
	if err := w.Header(h); err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(w.tar, sum), io.MultiReader(content, zeros{}), h.Size); err != nil {
		return err
	}
	add(w.sum, h, sum.Sum(nil))
	return nil
}

// Bytes adds a file owned by root.
func (w *Writer) Bytes(name string, content []byte) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(content)), ModTime: w.created}
	return w.File(h, bytes.NewReader(content))
}

// Close adds the last member and ends the stream.
func (w *Writer) Close() error {
	if err := w.Bytes(last, fmt.Appendf(nil, "%x\n", w.sum.Sum(nil))); err != nil {
		return err
	}
	for i := len(w.closers) - 1; i >= 0; i-- {
		if err := w.closers[i].Close(); err != nil {
			return err
		}
	}
	return nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Error is a defect of a stream, with a cure. Other errors are not the stream's.
type Error struct{ err error }

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

func wrong(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }

// cut returns the usual meaning of a reader's error.
func cut(err error) error {
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		return wrong("it ends too early; take another copy of the file")
	}
	return wrong("it is damaged: %w; take another copy of the file", err)
}

// Read passes each member except the last one to take, and returns the names of the files once the checksum matches:
// only then the results of take are valid. It returns an error of take unchanged.
func Read(ctx context.Context, in io.Reader, passphrase string, take func(h *tar.Header, content io.Reader) error) (names map[string]bool, err error) {
	plain, err := Unseal(in, passphrase)
	if err != nil {
		return nil, err
	}
	unpacked, err := zstd.NewReader(plain, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20))
	if err != nil {
		return nil, wrong("it cannot be unpacked: %w; take another copy of the file", err)
	}
	defer unpacked.Close()
	sums, all, ended := map[string]string{}, sha256.New(), false
	for members := tar.NewReader(unpacked); ; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, err := members.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, cut(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		_, again := sums[name]
		switch {
		case ended:
			return nil, wrong("something follows its end; take another copy of the file")
		case again:
			return nil, wrong("%s is in it twice; take another copy of the file", h.Name)
		case h.Name == last:
			want := fmt.Appendf(nil, "%x\n", all.Sum(nil))
			if got, err := io.ReadAll(io.LimitReader(members, int64(len(want))+1)); err != nil {
				return nil, cut(err)
			} else if !bytes.Equal(got, want) {
				return nil, wrong("it has another checksum than it should have; take another copy of the file")
			}
			ended = true
			continue
		case h.Name == listed:
			if err := compare(members, sums); err != nil {
				return nil, err
			}
			ended = true
			continue
		}
		sum := sha256.New()
		content := &watched{Reader: io.TeeReader(members, sum)}
		err = take(h, content)
		if err == nil { // hashes all of it, read or not
			_, err = io.Copy(io.Discard, content)
		}
		if content.err != nil {
			return nil, cut(content.err)
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			sums[name] = hex.EncodeToString(sum.Sum(nil))
			add(all, h, sum.Sum(nil))
		} else {
			sums[name] = ""
			add(all, h, nil)
		}
	}
	// To the very end: the last bytes have their own checksums.
	if n, err := io.Copy(io.Discard, unpacked); err != nil || n > 0 {
		return nil, cut(err)
	}
	if !ended {
		return nil, cut(nil)
	}
	names = map[string]bool{}
	for name, sum := range sums {
		if sum != "" {
			names[name] = true
		}
	}
	return names, nil
}

// watched stores the error of a reader, to distinguish it from a writer's.
type watched struct {
	io.Reader
	err error
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		w.err = err
	}
	return n, err
}

// compare compares a list of checksums with the files that were read.
func compare(list io.Reader, have map[string]string) error {
	raw, err := io.ReadAll(io.LimitReader(list, maxListed))
	if err != nil {
		return cut(err)
	}
	want := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok {
			return wrong("its list of checksums cannot be read; take another copy of the file")
		}
		if plain, err := strconv.Unquote(name); err == nil {
			name = plain
		}
		want[name] = sum
	}
	for name, sum := range have {
		if sum != "" && want[name] != sum {
			return wrong("%s has another checksum than it should have; take another copy of the file", name)
		}
	}
	for name := range want {
		if _, ok := have[name]; !ok {
			return wrong("%s is missing in it; take another copy of the file", name)
		}
	}
	return nil
}
