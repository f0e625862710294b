package appliance

import (
	"context"
	"slices"
	"strings"

	"rivulet/appliance/api"
	"rivulet/appliance/doctor"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/rpc"
)

// runDoctor looks at the device from time to time, so that its problems are known
// before anybody asks.
func (s *System) runDoctor(ctx context.Context, stage *lifecycle.Stage) error {
	env := func() *doctor.Env {
		return doctor.Here(s.cfg.Dirs.State, s.cfg.Dirs.Run, func(context.Context) (api.Status, error) { return s.Status(), nil })
	}
	doctor.Watch(ctx, env, &s.health, s.look, stage.Ready)
	return nil
}

// lookAgain makes the doctor look now; it does not wait for it.
func (s *System) lookAgain() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// fabricKinds are the fabric's own codes.
var fabricKinds = []*health.Kind{health.Tunnel, health.ControlPort}

// problems is everything that is wrong, whoever knows it, in one list: the same for
// every screen.
func (s *System) problems() []health.Problem {
	s.mu.Lock()
	fab, off := s.fabric, s.offload
	s.mu.Unlock()
	if fab != nil {
		tellFabric(&s.health, fab.Problems())
		tellAlarms(&s.health, fab.Alarms())
	}
	s.sources.judge(&s.health)
	if off != nil {
		tellOffload(&s.health, off.Problems())
	}
	return s.health.Problems()
}

// tellFabric makes the fabric's list part of the device's.
func tellFabric(t *health.Tracker, problems []rpc.Error) {
	said := map[string]map[string][2]string{}
	for _, p := range problems {
		kind, subject := health.Fabric.Code, p.Code
		for _, k := range fabricKinds {
			if k.Code == p.Code {
				kind, subject = k.Code, ""
			}
		}
		if said[kind] == nil {
			said[kind] = map[string][2]string{}
		}
		said[kind][subject] = [2]string{p.Message, p.Cure}
	}
	for _, k := range append(slices.Clone(fabricKinds), health.Fabric) {
		t.Replace(k, said[k.Code])
	}
}

// tellOffload makes offload's list, errors by part, part of the device's.
func tellOffload(t *health.Tracker, problems map[string]string) {
	said := map[string][2]string{}
	for part, text := range problems {
		cure := "it is tried again by itself"
		if i := strings.LastIndex(text, "; "); i >= 0 {
			text, cure = text[:i], text[i+2:]
		}
		said[part] = [2]string{text, cure}
	}
	t.Replace(health.Offload, said)
}
