package panics

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestAPanicIsAnError(t *testing.T) {
	var e *Error
	err := Call(func() error { var none []int; _ = none[len(none)]; return nil })
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "index out of range") || !bytes.Contains(e.Stack, []byte("TestAPanicIsAnError")) {
		t.Errorf("%v", err)
	}
	err = Call(func() error { panic("x\x1b]0;y\u0007") })
	if strings.ContainsAny(err.Error(), "\x1b\u0007") {
		t.Errorf("%q", err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Warn("ended", "err", err)
	if !strings.Contains(log.String(), "panics_test.go") {
		t.Errorf("logged without the stack: %s", &log)
	}
	own := errors.New("own")
	if err := Call(func() error { return own }); !errors.Is(err, own) {
		t.Errorf("%v", err)
	}
	defer To(func(err error) { t.Errorf("without a panic: %v", err) })
}
