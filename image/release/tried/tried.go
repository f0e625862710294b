// Package tried is the log of a run in which an image was tried: which image, what was
// run, what it said, how it ended. Command tried/run writes it beside the image, a
// release reads it. A log is written under another name and renamed when the run has
// ended, so a run that was cut leaves the log of the run before.
package tried

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"rivulet/image/filesum"
)

// End is what a log's name has in place of the image's .img.zst.
const End = ".test.log"

// Run is what a log says.
type Run struct {
	Image, Sum string // the image's file and its SHA-256
	Passed     bool
}

// The first and the last line of a log.
const (
	firstLine = "image %s sha256 %s\n"
	lastLine  = "result %s\n"
	passed    = "passed"
)

var form = regexp.MustCompile(`(?s)\Aimage (\S+) sha256 ([0-9a-f]{64})\n.*\nresult ([^\n]+)\n\z`)

// Read reads a log.
func Read(log []byte) (Run, error) {
	m := form.FindSubmatch(log)
	if m == nil {
		return Run{}, fmt.Errorf("it is no log of a run that ended")
	}
	return Run{Image: string(m[1]), Sum: string(m[2]), Passed: string(m[3]) == passed}, nil
}

// Do runs a command that tries the image and writes the log. What the command says
// goes to out, too. The error is the command's, or says that the image has become
// another meanwhile.
func Do(image string, command []string, out io.Writer) error {
	sum, _, err := filesum.SHA256(image)
	if err != nil {
		return fmt.Errorf("%w; make image", err)
	}
	name, packed := strings.CutSuffix(image, ".img.zst")
	if !packed {
		return fmt.Errorf("%s is no NAME.img.zst", image)
	}
	log, err := os.Create(name + End + ".new")
	if err != nil {
		return err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	fmt.Fprintf(log, firstLine, filepath.Base(image), sum)
	fmt.Fprintf(log, "begun %s: %s\n", time.Now().UTC().Format(time.RFC3339), strings.Join(command, " "))
	cmd := exec.Command(command[0], command[1:]...)
	said := &lines{out: io.MultiWriter(out, log)}
	cmd.Stdout, cmd.Stderr, cmd.Stdin = said, said, os.Stdin
	err = cmd.Run()
	if after, _, e := filesum.SHA256(image); err == nil && (e != nil || after != sum) {
		err = fmt.Errorf("%s has become another while it was tried; try that one", image)
	}
	result := passed
	if err != nil {
		result = "failed: " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	fmt.Fprintf(log, "\n"+lastLine, result)
	if e := log.Sync(); e != nil && err == nil {
		err = e
	}
	if e := os.Rename(log.Name(), name+End); e != nil && err == nil {
		err = e
	}
	return err
}

// lines writes whole lines only, and none that could be taken for one of ours.
type lines struct {
	out  io.Writer
	rest []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		line := l.rest[:i+1]
		if bytes.HasPrefix(line, []byte("result ")) {
			line = append([]byte(" "), line...)
		}
		if _, err := l.out.Write(line); err != nil {
			return 0, err
		}
		l.rest = l.rest[i+1:]
	}
}
