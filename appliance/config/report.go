package config

import (
	"fmt"
	"net"
	"os"
	"path"
	"slices"
	"strings"

	"rivulet/appliance/health"
)

// report updates the problems of the configuration.
func (f *Follower) report() {
	l := f.Now()
	var p, w Problem
	inForce := ". In force are the defaults"
	if l.From == FromLastGood {
		inForce = ". In force is the last good configuration"
	}
	if len(l.Problems) > 0 {
		p = l.Problems[0]
		if n := len(l.Problems) - 1; n > 0 {
			inForce = fmt.Sprintf(" (and %d more, see: rivulet config check)", n) + inForce
		}
	}
	if len(l.Warnings) > 0 {
		w = l.Warnings[0]
	}
	f.Health.SetIf(len(l.Problems) > 0, health.ConfigBroken, p.Place()+": "+p.Text+inForce, p.Cure)
	f.Health.SetIf(len(l.Warnings) > 0, health.ConfigUnsafe, w.Place()+": "+w.Text, w.Cure)
	f.Health.SetIf(l.Unsaved != nil, health.ConfigUnkept, fmt.Sprintf("%v. After a restart with a broken file an older one would be used", l.Unsaved), "look at the disk (space, read-only mount)")
	why, cure := l.TrustClosed()
	f.Health.SetIf(why != "", health.TrustClosed, why+"; peers that are trusted already stay", cure)
	_, err := os.Stat(OwnRegistries)
	f.Health.SetIf(err == nil && !l.Config.Registries.Empty(), health.ConfigShadowed,
		OwnRegistries+" is not read, because "+l.File+" has registries", "put everything below registries and remove "+OwnRegistries)
	f.reportLANs()
}

// reportLANs reports if no interface has an allowed name.
func (f *Follower) reportLANs() {
	allowed := f.Now().Config.LAN.Interfaces
	all, err := net.Interfaces()
	var names []string
	none := len(allowed) > 0 && err == nil
	for _, i := range all {
		names = append(names, i.Name)
		if slices.ContainsFunc(allowed, func(pattern string) bool { ok, _ := path.Match(pattern, i.Name); return ok }) {
			none = false
		}
	}
	f.Health.SetIf(none, health.LANUnmatched, fmt.Sprintf("lan.interfaces is %s, and this device has %s; no neighbour is found", strings.Join(allowed, ", "), strings.Join(names, ", ")),
		"name one that leads to the LAN, or remove lan.interfaces")
}

// TrustClosed returns why no new peer is trusted, and the cure; empty if trust.mode is in force.
func (l Loaded) TrustClosed() (why, cure string) {
	cure = "look at trust in the configuration (rivulet config show)"
	switch set := l.Config.WithDefaults("").Trust; {
	case l.Closed:
		return "the configuration cannot be read, so what it says of trust is not known", "mend " + l.File + " (rivulet config check)"
	case set.Mode == TrustGroup && set.Secret == "":
		return "the group's secret cannot be read", cure
	case slices.Contains([]string{TrustLAN, TrustGroup, TrustAsk}, set.Mode):
		return "", ""
	default:
		return fmt.Sprintf("trust.mode is %s, which is not known", set.Mode), cure
	}
}
