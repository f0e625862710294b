// Package panics turns a panic into an error. A panic of one goroutine ends the whole process, and with it the cluster;
// goroutines that handle what another cluster has sent begin with "defer panics.To(failed)" instead, so that only the
// part for that cluster ends, is shown as a problem, and is started again after a pause (offload/parts). test/arch
// checks that. It cannot catch what the runtime ends a process for: a full memory, an endless recursion, maps that are
// written at once.
package panics

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"rivulet/fabric/peer"
)

// Error is a panic.
type Error struct {
	Value any
	Stack []byte // of the goroutine
}

func (e *Error) Error() string {
	return fmt.Sprintf("panic: %s; this is a flaw of Rivulet: please report it with what this writes: rivulet support",
		peer.Text(fmt.Sprint(e.Value)))
}

// LogValue adds the stack where the error is logged.
func (e *Error) LogValue() slog.Value { return slog.StringValue(e.Error() + "\n" + string(e.Stack)) }

// To passes a panic of the function that defers it to failed, as an *Error. Without a panic it does nothing.
func To(failed func(error)) {
	if v := recover(); v != nil {
		failed(&Error{v, debug.Stack()})
	}
}

// Call calls f and returns its error; a panic of f is an *Error.
func Call(f func() error) (err error) {
	defer To(func(panicked error) { err = panicked })
	return f()
}
