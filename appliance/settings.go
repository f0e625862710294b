package appliance

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"rivulet/appliance/config"
	"rivulet/appliance/engine"
	"rivulet/appliance/health"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/network"
	"rivulet/offload/offer"
)

// lastGood is where the last configuration without a mistake is kept, under the state folder.
const lastGood = "config.good.yaml"

// settings is the user's configuration, and what the parts of the appliance were told of it.
type settings struct {
	*config.Keeper
	// reloading and settling go one at a time, so that nothing old comes last.
	reloading, settling sync.Mutex
}

func openSettings(cfg Config, facts host.Facts) *config.Keeper {
	src := cfg.Source
	src.Keep = filepath.Join(cfg.Dirs.State, lastGood)
	src.Host = config.Host{CPUs: runtime.NumCPU(), MemoryBytes: facts.MemoryBytes}
	return config.Open(src)
}

func newSettings(k *config.Keeper) *settings {
	return &settings{Keeper: k}
}

// name is the cluster's for its peers.
func (s *System) name() string { return cmp.Or(s.settings.Now().Config.Name, s.nodeName) }

// share is what is lent. In Share 0 is "not set".
func (s *System) share() offer.Share {
	set := s.settings.Now().Config.Share
	percent := func(p config.Percent) int {
		if v := p.Value(); v > 0 {
			return v
		}
		return offer.Nothing
	}
	out := offer.Share{CPU: percent(set.CPU), Memory: percent(set.Memory)}
	if set.MaxPods != nil {
		if out.MaxPods = *set.MaxPods; out.MaxPods == 0 {
			out.MaxPods = offer.Nothing
		}
	}
	return out
}

// settle tells every part that runs what is in force. A part that is made later
// calls it, and has then missed nothing.
func (s *System) settle() {
	s.settings.settling.Lock()
	defer s.settings.settling.Unlock()
	made := s.made.get()
	fab, off := made.fabric, made.offload
	set := s.settings.Now().Config
	s.lans.Allow(set.LAN.Interfaces)
	s.sources.Set(set.Peers)
	if fab != nil {
		fab.SetTrust(network.Policy(s.settings.Now()))
		fab.SetName(s.name())
		fab.SetPeerCIDR(set.Tunnel.Block())
		fab.SetPaths(set.Tunnel.Relays(), uint16(set.Tunnel.StreamPort))
	}
	if off != nil {
		off.ShareChanged()
		off.WithheldChanged()
	}
	if s.burst != nil {
		s.burst.Configure(set.Burst)
	}
	if s.page != nil {
		s.page.Configure(set.StatusPage, s.hostNames())
	}
	s.keeper.Changed()
	s.judge()
}

// judge keeps the problems that come from the configuration.
func (s *System) judge() {
	l := s.settings.Now()
	s.judgeFile(l)
	why, cure := network.Closed(l)
	s.judged(health.TrustClosed, why != "", why+"; peers that are trusted already stay", cure)
	_, err := os.Stat(engine.OwnRegistries)
	s.judged(health.ConfigShadowed, err == nil && !l.Config.Registries.Empty(),
		engine.OwnRegistries+" is not read, because "+l.File+" has registries", "put everything below registries and remove "+engine.OwnRegistries)
	s.judgeLANs()
}

func (s *System) judgeFile(l config.Loaded) {
	if len(l.Problems) == 0 {
		s.health.Clear(health.ConfigBroken)
	} else {
		p := l.Problems[0]
		text := p.Place() + ": " + p.Text
		if n := len(l.Problems) - 1; n > 0 {
			text += fmt.Sprintf(" (and %d more, see: rivulet config check)", n)
		}
		inForce := ". In force are the defaults"
		if l.From == config.FromLastGood {
			inForce = ". In force is the last good configuration"
		}
		s.health.Set(health.ConfigBroken, text+inForce, p.Cure)
	}
	if len(l.Warnings) == 0 {
		s.health.Clear(health.ConfigUnsafe)
	} else {
		w := l.Warnings[0]
		s.health.Set(health.ConfigUnsafe, w.Place()+": "+w.Text, w.Cure)
	}
	var err error
	if l.Unsaved != nil {
		err = fmt.Errorf("%w. After a restart with a broken file an older one would be used; look at the disk (space, read-only mount)", l.Unsaved)
	}
	s.health.Report(health.ConfigUnkept, err)
}

// judged sets or clears a problem; one that goes on keeps its begin.
func (s *System) judged(k *health.Kind, holds bool, text, cure string) {
	if holds {
		s.health.Set(k, text, cure)
	} else {
		s.health.Clear(k)
	}
}

// judgeLANs tells when no interface has a name that is allowed.
func (s *System) judgeLANs() {
	allowed := s.settings.Now().Config.LAN.Interfaces
	all, err := net.Interfaces()
	var names []string
	none := len(allowed) > 0 && err == nil
	for _, i := range all {
		for _, pattern := range allowed {
			if ok, _ := path.Match(pattern, i.Name); ok {
				none = false
			}
		}
		names = append(names, i.Name)
	}
	s.judged(health.LANUnmatched, none, fmt.Sprintf("lan.interfaces is %s, and this device has %s; no neighbour is found", strings.Join(allowed, ", "), strings.Join(names, ", ")),
		"name one that leads to the LAN, or remove lan.interfaces")
}

// registriesInForce is k3s's file out of the configuration, or a mark of the user's
// own file, which k3s reads itself.
func (s *System) registriesInForce() (text, mark string) {
	if text = s.settings.Now().Config.Registries.K3s(); text != "" {
		return text, ""
	}
	raw, err := os.ReadFile(engine.OwnRegistries)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err.Error()
	}
	return "", string(raw)
}

// registries is what containerd is told of registries, in k3s's form.
func (s *System) registries() string {
	text, own := s.registriesInForce()
	return cmp.Or(text, own)
}

// withheld are the hosts of registries that the owner's credentials are used for: containerd
// would use them for whoever asks.
func (s *System) withheld() []string {
	text, own := s.registriesInForce()
	if text != "" {
		return s.settings.Now().Config.Registries.Withheld()
	}
	return config.Withheld(own)
}

// peerImages reports whether images pass between clusters.
func (s *System) peerImages() bool { return s.settings.Now().Config.ImagesPass() }
