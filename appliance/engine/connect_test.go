package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
)

// An API server that answers and cannot be used at first is tried again, and shown with a
// cure until it can.
func TestConnectIsTriedAgain(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	problems := &health.Tracker{}
	k := NewSupervisor(nil, nil, problems, slog.New(slog.DiscardHandler))
	tries, shown := 0, false
	var m *lifecycle.Manager
	m, err := lifecycle.New(k.log, lifecycle.Component{Name: "engine", Run: func(ctx context.Context, stage *lifecycle.Stage) error {
		ok := k.untilConnected(ctx, stage, func() error {
			if tries++; tries > 3 {
				return nil
			}
			for _, p := range problems.Problems() {
				shown = shown || p.Code == health.EngineUnusable.Code && p.Cure != "" && m.Status()[0].State != lifecycle.Ready
			}
			return errors.New("the certificate is not known")
		}, time.Millisecond)
		if ok {
			stage.Ready()
		}
		stop()
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	m.Run(ctx)
	if tries != 4 || !shown || len(problems.Problems()) > 0 {
		t.Errorf("%d tries, shown %v, left %v", tries, shown, problems.Problems())
	}
	dead, end := context.WithCancel(t.Context())
	end()
	if k.untilConnected(dead, nil, func() error { return errors.New("gone") }, time.Hour) {
		t.Error("connected to an engine that has ended")
	}
}

// Engines are started again while everything else asks for them (with -race); what asks
// before there is one gets nothing.
func TestHandleIsSharedSafely(t *testing.T) {
	h := NewHandle(t.TempDir())
	h.Restart("too early")
	if h.Client() != nil || h.Version() != "" {
		t.Error("there is a client of no engine")
	}
	if _, err := h.REST(); err == nil {
		t.Error("a configuration before k3s has written one")
	}
	var all sync.WaitGroup
	e := New(Config{})
	for range 8 {
		all.Go(func() { h.begins(e) })
		all.Go(func() { _, _ = h.Client(), h.Version() })
		all.Go(func() { h.Restart("why") })
	}
	all.Wait()
	if h.Restart("again"); <-e.again == "" {
		t.Error("the engine was not told why")
	}
	if _, err := h.connect(t.Context()); err == nil {
		t.Error("connected to no API server")
	}
}
