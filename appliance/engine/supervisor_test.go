package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/appliance/lifecycle"
)

// settingsOwner has settings and no engine.
type settingsOwner struct {
	Owner
	atomic.Pointer[Settings]
}

func (o *settingsOwner) Settings() Settings { return *o.Load() }

// The engine is started again for what it reads only at its start, for nothing else,
// and with what is in force then. Its own end is not taken for that.
func TestKeepEngine(t *testing.T) {
	inForce := &settingsOwner{}
	inForce.Store(&Settings{Own: "own"})
	log := slog.New(slog.DiscardHandler)
	k := NewSupervisor(NewHandle(t.TempDir()), inForce, nil, log)
	change := func(set Settings) {
		inForce.Store(&set)
		k.Changed()
	}
	started := make(chan Settings)
	end := make(chan error)
	manager, err := lifecycle.New(log, lifecycle.Component{Name: "engine", Run: func(ctx context.Context, stage *lifecycle.Stage) error {
		return k.keep(ctx, stage, func(ctx context.Context, _ *lifecycle.Stage, set Settings) error {
			started <- set
			select {
			case <-ctx.Done():
				return nil
			case err := <-end:
				return err
			}
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { manager.Run(ctx); close(done) }()
	next := func(what string) Settings {
		t.Helper()
		select {
		case set := <-started:
			return set
		case <-time.After(10 * time.Second):
			t.Fatalf("no engine was started: %s", what)
			return Settings{}
		}
	}
	if set := next("first"); set != (Settings{Own: "own"}) {
		t.Errorf("%+v", set)
	}
	k.Changed() // something that is not the engine's
	change(Settings{Own: "own", ReserveCPU: "100m"})
	if p := k.Pending(); len(p) != 1 || p[0] != "reserve: the engine starts again, pods go on" {
		t.Errorf("%+v", p)
	}
	if set := next("reserve"); set.ReserveCPU != "100m" {
		t.Errorf("started for something else: %+v", set)
	}
	if len(k.Pending()) != 1 {
		t.Error("it is not pending until the engine is up")
	}
	k.starts("")
	change(Settings{Registries: "http://b"})
	if set := next("registries"); set.ReserveCPU != "" || !strings.Contains(set.Registries, "http://b") {
		t.Errorf("%+v", set)
	}
	k.starts("")
	if got := k.Pending(); got != nil {
		t.Errorf("%v", got)
	}
	end <- errors.New("it ended by itself")
	if set := next("after its own end"); !strings.Contains(set.Registries, "http://b") {
		t.Errorf("%+v", set)
	}
	if st := manager.Status()[0]; st.Starts != 2 {
		t.Errorf("the component was started %d times, want 2: only its own end is a failure", st.Starts)
	}
	cancel()
	<-done
}
