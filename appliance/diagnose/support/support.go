// Package support collects information about faults in one archive without secrets (package redact;
// docs/design/support.md). It reads the supervisor's answers, lists of the cluster, logs, the state of network and
// machine, and files with secrets, to know what to remove; it alone writes the given stream. Failure: every part is
// bounded in time and size and independent of the others; index.txt has the missing ones with the reason.
package support

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"rivulet/appliance/diagnose/redact"
)

const (
	// partMax is the size of one part, bytes; of a longer one the end is kept, which is the newest of a log.
	partMax = 1 << 20
	// partTime is the time limit of one part; all are collected concurrently.
	partTime = 20 * time.Second
)

// Part is one file of the archive.
type Part struct {
	Name string
	Read func(context.Context) (string, error)
}

// Write collects the parts and writes the archive, redacted. Missing parts are no error: missing has their names.
func Write(ctx context.Context, w io.Writer, now time.Time, r *redact.Redactor, parts []Part) (missing []string, err error) {
	texts, errs := gather(ctx, parts)
	var index strings.Builder
	fmt.Fprintf(&index, "What a device of Rivulet says of itself, gathered %s.\nKeys, tokens and passwords were removed; names and addresses were not.\n\n", now.UTC().Format(time.RFC3339))
	for i, p := range parts {
		if errs[i] == nil {
			fmt.Fprintf(&index, "%-32s %7d bytes\n", p.Name, len(texts[i]))
			continue
		}
		line := fmt.Sprintf("%s: %v", p.Name, errs[i])
		missing = append(missing, oneLine(r.Text(line)))
		fmt.Fprintf(&index, "%-32s could not be had: %s\n", p.Name, oneLine(errs[i].Error()))
	}
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	add := func(name, text string) error {
		text = r.Text(text)
		h := &tar.Header{Name: "rivulet-support/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: now, Typeflag: tar.TypeReg}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.WriteString(t, text)
		return err
	}
	if err := add("index.txt", index.String()); err != nil {
		return missing, err
	}
	for i, p := range parts {
		if texts[i] == "" { // of a part that failed, what there is
			continue
		}
		if err := add(p.Name, texts[i]); err != nil {
			return missing, err
		}
	}
	return missing, errors.Join(t.Close(), z.Close())
}

// gather reads all parts concurrently. One that ignores its time limit is abandoned.
func gather(ctx context.Context, parts []Part) (texts []string, errs []error) {
	texts, errs = make([]string, len(parts)), make([]error, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Go(func() { texts[i], errs[i] = read(ctx, p) })
	}
	wg.Wait()
	return texts, errs
}

func read(ctx context.Context, p Part) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, partTime)
	defer cancel()
	type answer struct {
		text string
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				done <- answer{"", fmt.Errorf("a bug of rivulet: %v", v)}
			}
		}()
		text, err := p.Read(ctx)
		done <- answer{tail(text), err}
	}()
	late := time.NewTimer(partTime + 2*time.Second)
	defer late.Stop()
	select {
	case a := <-done:
		return a.text, a.err
	case <-late.C:
		return "", fmt.Errorf("no answer within %s", partTime)
	}
}

// tail keeps the end of a long text, from the beginning of a line on.
func tail(text string) string {
	if len(text) <= partMax {
		return text
	}
	text = text[len(text)-partMax:]
	if i := strings.IndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	return "… (the beginning was left out)\n" + text
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
