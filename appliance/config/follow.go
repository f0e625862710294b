package config

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
)

// watchAgain is the pause before a failed watch is retried.
const watchAgain = 10 * time.Second

// Follower applies the configuration: when Run begins, when its file or OwnRegistries changes, on SIGHUP, and at each
// call of Again. All fields must be set. Its methods may be called concurrently.
type Follower struct {
	*Current
	NodeName string
	// Apply passes the configuration in force to all components; one call at a time.
	Apply func(Config)
	// LANs subscribes to changes of the device's interfaces.
	LANs   func() (<-chan struct{}, func())
	Health *health.Tracker
	Log    *slog.Logger

	// reloading and settling are serialized, so that an old configuration is never applied last.
	reloading, settling sync.Mutex
}

// Name is the cluster's name for users and peers.
func (f *Follower) Name() string { return cmp.Or(f.Now().Config.Name, f.NodeName) }

// Run follows the files until ctx ends.
func (f *Follower) Run(ctx context.Context, stage *lifecycle.Stage) error {
	hup := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGHUP) { // respects nohup
		signal.Notify(hup, syscall.SIGHUP)
		defer signal.Stop(hup)
	}
	lans, stop := f.LANs()
	defer stop()
	f.Settle()
	changed := make(chan struct{}, 1)
	poke := func() { changes.Poke(changed) }
	go f.watch(ctx, f.Path(), stage.Ready, poke)
	if f.Path() != OwnRegistries {
		go f.watch(ctx, OwnRegistries, func() {}, poke)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-lans:
			f.settling.Lock()
			f.reportLANs()
			f.settling.Unlock()
			continue
		case <-hup:
			f.Log.Info("SIGHUP: reading the configuration again")
		case <-changed:
		}
		f.Again()
	}
}

// watch watches a file until ctx ends.
func (f *Follower) watch(ctx context.Context, file string, ready, changed func()) {
	for {
		err := Watch(ctx, file, func() {
			f.Health.ClearFor(health.ConfigUnwatched, file)
			ready()
			changed() // for changes without a watch
		}, changed)
		if err == nil {
			return
		}
		f.Health.SetFor(health.ConfigUnwatched, file, err.Error(), "after a change: rivulet config reload")
		ready()
		if !changes.Wait(ctx, watchAgain) {
			return
		}
	}
}

// Again reads the configuration again, applies it, and returns it with the changed keys.
func (f *Follower) Again() (is Loaded, changed []string) {
	f.reloading.Lock()
	defer f.reloading.Unlock()
	was, is := f.Reload()
	f.Settle()
	changed = Changed(was.Config, is.Config)
	switch {
	case Same(was, is):
	case len(is.Problems) > 0:
		f.Log.Error("the configuration is not used", "from", is.From, "err", is.Problems)
	default:
		f.Log.Info("configuration", "from", is.From, "file", is.File, "changed", changed)
	}
	return is, changed
}

// Settle applies what is in force, and reports what is wrong with it. A component that is created later calls it to
// receive the present configuration.
func (f *Follower) Settle() {
	f.settling.Lock()
	defer f.settling.Unlock()
	f.Apply(f.Now().Config)
	f.report()
}
