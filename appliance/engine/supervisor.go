package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
)

// Settings are those that an engine reads only at its start.
type Settings struct {
	// ReserveCPU and ReserveMemory (Kubernetes quantities) are kept from pods; empty is nothing.
	ReserveCPU, ReserveMemory string
	// Registries is k3s's configuration of image registries; empty means /etc/rivulet/registries.yaml, whose content is
	// Own.
	Registries, Own string
	// Datastore is the address of the SQL database with the objects, a secret; empty is the file of package kine. A
	// worker has none.
	Datastore string
}

// Supervisor runs an engine, and restarts it whenever its settings have changed. Nothing else stops, and pods continue.
type Supervisor struct {
	handle  *Handle
	owner   Owner
	health  *health.Tracker
	log     *slog.Logger
	changed chan struct{} // receives when the settings may have changed

	mu   sync.Mutex
	runs *Settings // of the last start; nil before
	why  string    // the keys for which it is being restarted
}

// NewSupervisor returns a Supervisor whose engines are reached through h.
func NewSupervisor(h *Handle, owner Owner, problems *health.Tracker, log *slog.Logger) *Supervisor {
	return &Supervisor{handle: h, owner: owner, health: problems, log: log, changed: make(chan struct{}, 1)}
}

// Changed is called when the settings may have changed. It does not wait.
func (k *Supervisor) Changed() {
	changes.Poke(k.changed)
}

// Run runs engines until ctx or one of them ends by itself.
func (k *Supervisor) Run(ctx context.Context, stage *lifecycle.Stage) error {
	return k.keep(ctx, stage, k.one)
}

// one runs an engine with the settings until it or ctx ends.
func (k *Supervisor) one(ctx context.Context, stage *lifecycle.Stage, set Settings) error {
	cfg, err := k.owner.Config()
	if err != nil {
		return err
	}
	cfg.Settings = set
	e := New(cfg)
	e.owner = k.owner
	k.handle.begins(e)
	err = e.Run(ctx, stage.Waiting, func(life context.Context) {
		if k.untilConnected(life, stage, func() error { return k.connect(life) }, firstConnect) {
			k.starts("")
			stage.Ready()
		}
	})
	k.owner.Ended(errors.Join(err, e.killed))
	return err
}

func (k *Supervisor) connect(ctx context.Context) error {
	news, err := k.handle.connect(ctx)
	if news {
		k.owner.NewVersion()
	}
	return err
}

// differ returns the keys for which the engine has to be restarted.
func (e Settings) differ(o Settings) string {
	var keys []string
	if e.ReserveCPU != o.ReserveCPU || e.ReserveMemory != o.ReserveMemory {
		keys = append(keys, "reserve")
	}
	if e.Registries != o.Registries || e.Own != o.Own {
		keys = append(keys, "registries")
	}
	if e.Datastore != o.Datastore {
		keys = append(keys, "datastore")
	}
	return strings.Join(keys, " and ")
}

// keep calls run repeatedly with the settings in force.
func (k *Supervisor) keep(ctx context.Context, stage *lifecycle.Stage, run func(context.Context, *lifecycle.Stage, Settings) error) error {
	for {
		set := k.owner.Settings()
		k.begins(set)
		ectx, cancel := context.WithCancel(ctx)
		go func() {
			for {
				select {
				case <-ectx.Done():
					return
				case <-k.changed:
				}
				if why := k.owner.Settings().differ(set); why != "" {
					k.log.Info("the engine starts again, pods go on", "changed", why)
					k.starts(why)
					stage.Waiting("the engine ends, to start again with other %s; pods go on", why)
					cancel()
					return
				}
			}
		}()
		err := run(ectx, stage, set)
		again := ectx.Err() != nil && ctx.Err() == nil
		cancel()
		if !again {
			return err
		}
	}
}

// begins records the settings of a start.
func (k *Supervisor) begins(set Settings) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.runs = &set
}

// starts records the keys for which the engine is being restarted; "" when it is up.
func (k *Supervisor) starts(why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.why = why
}

// Pending returns what is not in force yet.
func (k *Supervisor) Pending() []string {
	k.mu.Lock()
	runs, why := k.runs, k.why
	k.mu.Unlock()
	if now := k.owner.Settings(); why == "" && runs != nil {
		why = now.differ(*runs)
	}
	if why == "" {
		return nil
	}
	return []string{why + ": the engine starts again, pods go on"}
}
