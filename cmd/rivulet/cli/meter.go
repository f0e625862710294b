package cli

import (
	"fmt"
	"io"

	"rivulet/image/flash"
)

// meter shows progress on stderr: one line that is rewritten on a terminal, otherwise a line for each tenth.
type meter struct {
	out   io.Writer
	tty   bool
	stage flash.Stage
	shown int64
	open  bool
}

func newMeter(out io.Writer) *meter {
	return &meter{out: raw(out), tty: isTerminal(out)}
}

func (m *meter) progress(s flash.Stage, done, of int64) {
	if of <= 0 {
		return
	}
	percent := done * 100 / of
	if !m.tty {
		percent -= percent % 10
	}
	if s == m.stage && percent == m.shown {
		return
	}
	if m.open && s != m.stage {
		fmt.Fprintln(m.out)
	}
	m.stage, m.shown, m.open = s, percent, m.tty
	if m.tty {
		fmt.Fprintf(m.out, "\r%s: %d %%, %s of %s ", s, percent, flash.Bytes(done), flash.Bytes(of))
		return
	}
	fmt.Fprintf(m.out, "%s: %d %% of %s\n", s, percent, flash.Bytes(of))
}

func (m *meter) end() {
	if m.open {
		fmt.Fprintln(m.out)
	}
	m.stage, m.open = "", false
}
