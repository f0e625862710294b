package appliance

import (
	"context"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/engine"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/netmon"
)

// watchAgain is the pause before a watch that the kernel refused is tried again.
const watchAgain = 10 * time.Second

// runConfig reads the configuration again when its file changes and on SIGHUP.
func (s *System) runConfig(ctx context.Context, stage *lifecycle.Stage) error {
	hup := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGHUP) { // nohup means what it says
		signal.Notify(hup, syscall.SIGHUP)
		defer signal.Stop(hup)
	}
	s.settle()
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	go s.keepWatch(ctx, s.settings.Path(), stage.Ready, poke)
	if s.settings.Path() != engine.OwnRegistries {
		go s.keepWatch(ctx, engine.OwnRegistries, func() {}, poke)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			s.cfg.Log.Info("SIGHUP: reading the configuration again")
		case <-changed:
		}
		s.reload()
	}
}

// keepWatch watches a file as long as ctx lives.
func (s *System) keepWatch(ctx context.Context, file string, ready, changed func()) {
	for ctx.Err() == nil {
		err := config.Watch(ctx, file, func() {
			s.health.ClearFor(health.ConfigUnwatched, file)
			ready()
			changed() // what happened while nobody watched
		}, changed)
		if err == nil {
			return
		}
		s.health.SetFor(health.ConfigUnwatched, file, err.Error(), "after a change: rivulet config reload")
		ready()
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// reload reads the configuration again and puts it into force.
func (s *System) reload() api.Reloaded {
	s.settings.reloading.Lock()
	defer s.settings.reloading.Unlock()
	was, is := s.settings.Reload()
	s.settle()
	out := api.Reloaded{Config: s.configStatus(), Changed: config.Changed(was.Config, is.Config), Problems: is.Problems}
	switch {
	case config.Same(was, is):
	case len(is.Problems) > 0:
		s.cfg.Log.Error("the configuration is not used", "from", is.From, "error", is.Problems)
	default:
		s.cfg.Log.Info("configuration", "from", is.From, "file", is.File, "changed", out.Changed)
	}
	return out
}

func (s *System) configStatus() api.Config {
	l := s.settings.Now()
	return api.Config{File: l.File, From: l.From, Loaded: l.At, Broken: len(l.Problems) > 0, Pending: s.keeper.Pending()}
}

func (s *System) configRoutes(mux *http.ServeMux) {
	mux.Handle("GET /v1/config", api.JSON(func(*http.Request) (any, error) {
		v := s.settings.Now().View(s.nodeName)
		v.Pending = s.keeper.Pending()
		return v, nil
	}))
	mux.Handle("POST /v1/config/reload", api.JSON(func(*http.Request) (any, error) { return s.reload(), nil }))
}

// followLANs looks again whether an allowed interface is there.
func (s *System) followLANs(ctx context.Context, lans *netmon.Monitor) {
	changed, stop := lans.Changed()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			s.settings.settling.Lock()
			s.judgeLANs()
			s.settings.settling.Unlock()
		}
	}
}
