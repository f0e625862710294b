package burst

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"rivulet/appliance/health"
	"rivulet/fabric/cure"
	"rivulet/offload/target/external"
)

var errNoGateway = errors.New("this build has no gateway; set network: none")

// View is one target as shown to users.
type View struct {
	external.Settings
	Server string    `json:"server"`
	Added  time.Time `json:"added,omitzero"`
	// File is true for one of the configuration. Doubt is why its present kubeconfig is not used, but the last one is.
	File  bool   `json:"file,omitempty"`
	Doubt string `json:"doubt,omitempty"`
	// Removed is true during the cleanup after a removal.
	Removed bool `json:"removed,omitempty"`
	// State is the result of the last check.
	State external.Health `json:"state"`
	// Broken is why it cannot be used at all.
	Broken string `json:"broken,omitempty"`
	// Ends is the end of the credential, Renewed what renews it.
	Ends    time.Time `json:"ends,omitzero"`
	Renewed string    `json:"renewed,omitempty"`
	// Gateway is the report of the gateway.
	Gateway any `json:"gateway,omitempty"`

	due  time.Time // when its renewal is late
	kept bool      // what it has there may be another target's
}

// List returns all targets, by name; those being removed last.
func (m *Manager) List() []View {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []View{}
	for _, name := range slices.Sorted(maps.Keys(m.entries)) {
		out = append(out, m.entries[name].view())
	}
	for _, e := range m.leaving {
		v := e.view()
		v.Removed, v.State.Ready = true, false
		out = append(out, v)
	}
	return out
}

func (e *entry) view() View {
	v := View{Settings: e.Settings, Server: e.Server, Added: e.Added, File: e.File, State: e.health}
	if e.credential.Kubeconfig != nil {
		v.Ends, v.Renewed, v.due = e.credential.Ends(), e.credential.Renewed(), e.credential.Due()
	}
	if err := errors.Join(e.broken, e.double); err != nil {
		v.Broken, v.kept = err.Error(), errors.Is(err, errKept)
	}
	if e.doubt != nil {
		v.Doubt = e.doubt.Error()
	}
	if e.way != nil {
		v.Gateway = e.way.gateway.Status()
		if err := e.way.failure(); err != nil && v.Gateway == nil {
			v.Gateway = map[string]string{"reason": err.Error()}
		}
	}
	return v
}

// endsSoon is how long before its end a credential without renewal is reported.
const endsSoon = 7 * 24 * time.Hour

// evaluate updates the problems of the targets.
func (m *Manager) evaluate() {
	unusable, credential, left := map[string][2]string{}, map[string][2]string{}, map[string][2]string{}
	if m.unread != nil {
		unusable["the stored list"] = split(m.unread.Error())
	}
	for _, v := range m.List() {
		switch {
		case v.Removed:
			if text, help := cure.Cut(v.Broken); v.kept {
				left[v.Name] = [2]string{fmt.Sprintf("what Rivulet has in namespace %s of %s is %s", v.Namespace, v.Server, text), help}
			} else if v.Broken != "" {
				left[v.Name] = [2]string{fmt.Sprintf("what Rivulet has in namespace %s of %s is not cleaned up yet: %s", v.Namespace, v.Server, v.Broken),
					"it is tried on; or run rivulet burst remove --kubeconfig FILE --purge with a credential that works, and rivulet burst remove " + v.Name + " --force"}
			}
		case v.Broken != "":
			unusable[v.Name] = split(v.Broken)
		case !v.State.Ready && v.State.Reason != "":
			unusable[v.Name] = split(v.State.Reason)
		case v.Doubt != "":
			credential[v.Name] = split(v.Doubt + "; until it is mended the last one is used")
		}
		if v.Removed || v.Ends.IsZero() {
			continue
		}
		soon := time.Until(v.Ends) < endsSoon
		if v.Renewed != "" {
			soon = time.Now().After(v.due)
		}
		if soon {
			text := fmt.Sprintf("its credential ends %s", v.Ends.Format(time.DateTime))
			cure := "ask that cluster's administrator for a new kubeconfig, and: rivulet burst add " + v.Name + " --kubeconfig FILE --replace"
			if v.File {
				cure = "put a new kubeconfig in the place of the one that the configuration names"
			}
			if time.Now().After(v.Ends) {
				text = fmt.Sprintf("its credential ended %s", v.Ends.Format(time.DateTime))
			}
			if v.Renewed != "" {
				cure = "see why it is not renewed by " + v.Renewed
			}
			credential[v.Name] = [2]string{text, cure}
		}
	}
	m.cfg.Health.Replace(health.BurstUnusable, unusable)
	m.cfg.Health.Replace(health.BurstCredential, credential)
	m.cfg.Health.Replace(health.BurstLeft, left)
}

// split separates the cure from an error.
func split(text string) [2]string {
	text, help := cure.Cut(text)
	return [2]string{text, cmp.Or(help, "it is tried again by itself; see rivulet burst status")}
}
