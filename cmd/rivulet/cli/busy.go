package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// patience is how long a verb may print nothing on a terminal.
const patience = 2 * time.Second

// busy shows on the terminal what a verb waits for, and since when, after patience. The returned function ends that,
// and clears the line.
func busy(what string) (end func()) {
	if !isTerminal(os.Stderr) {
		return func() {}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		spin(os.Stderr, what, patience, stop)
	}()
	return func() { close(stop); <-done }
}

// spin rewrites one line each second, after the first pause, until stop.
func spin(out io.Writer, what string, first time.Duration, stop <-chan struct{}) {
	begun, width := time.Now(), 0
	next := time.NewTimer(first)
	defer next.Stop()
	for {
		select {
		case <-stop:
			if width > 0 {
				fmt.Fprintf(out, "\r%s\r", strings.Repeat(" ", width))
			}
			return
		case <-next.C:
			line := fmt.Sprintf("%s: %s ", what, time.Since(begun).Round(time.Second))
			width = max(width, len(line))
			fmt.Fprintf(out, "\r%-*s", width, line)
			next.Reset(time.Second)
		}
	}
}
