package appliance

import (
	"context"
	"strings"

	"rivulet/appliance/lifecycle"
)

// engineSettings is what an engine takes only when it starts.
type engineSettings struct {
	ReserveCPU, ReserveMemory string
	Registries                string // out of the configuration
	own                       string // the user's own registries.yaml
}

func (s *System) engineSettings() engineSettings {
	reserve := s.settings.Now().Config.Reserve
	text, own := s.registriesInForce()
	return engineSettings{ReserveCPU: reserve.CPU, ReserveMemory: reserve.Memory, Registries: text, own: own}
}

// differ names the keys for which the engine has to start again.
func (e engineSettings) differ(o engineSettings) string {
	var keys []string
	if e.ReserveCPU != o.ReserveCPU || e.ReserveMemory != o.ReserveMemory {
		keys = append(keys, "reserve")
	}
	if e.Registries != o.Registries || e.own != o.own {
		keys = append(keys, "registries")
	}
	return strings.Join(keys, " and ")
}

// keepEngine runs the engine, and starts it again whenever its settings have
// changed: nothing else is stopped, and pods go on.
func (s *System) keepEngine(ctx context.Context, stage *lifecycle.Stage, run func(context.Context, *lifecycle.Stage, engineSettings) error) error {
	for {
		set := s.engineSettings()
		s.settings.engineBegins(set)
		ectx, cancel := context.WithCancel(ctx)
		go func() {
			for {
				select {
				case <-ectx.Done():
					return
				case <-s.settings.changed:
				}
				if why := s.engineSettings().differ(set); why != "" {
					s.cfg.Log.Info("the engine starts again, pods go on", "changed", why)
					s.settings.engineStarts(why)
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

// engineBegins notes what an engine is started with.
func (s *settings) engineBegins(set engineSettings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = &set
}

// engineStarts notes for which keys the engine is being started again; none says
// that it is up.
func (s *settings) engineStarts(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = why
}

// pending says what is not in force yet.
func (s *System) pending() []string {
	s.settings.mu.Lock()
	runs, why := s.settings.runs, s.settings.why
	s.settings.mu.Unlock()
	if now := s.engineSettings(); why == "" && runs != nil {
		why = now.differ(*runs)
	}
	if why == "" {
		return nil
	}
	return []string{why + ": the engine starts again, pods go on"}
}
