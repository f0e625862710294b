package clusterset

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/config"
	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
)

// A cluster that changes what it exports all the time, or exports very much, costs this one no more than others.
func TestAHostileExporter(t *testing.T) {
	n := newNeighbour(t)
	s := New(Config{ID: "me", Fabric: func() Fabric { return n }, Setting: func() config.Services { return config.Services{Import: config.ServicesAll} }})
	go s.follow(t.Context())
	last := func() string {
		out, _, _ := s.contributions()
		if len(out) == 0 {
			return ""
		}
		return out[len(out)-1].Name
	}
	began, sent := time.Now(), changeBurst+4
	go func() {
		for i := range sent {
			n.exports(theirs("shop", fmt.Sprintf("web-%d", i), true))
		}
	}()
	await.True(t, time.Minute, "the last change", func() bool { return last() == fmt.Sprintf("web-%d", sent-1) })
	if took := time.Since(began); took < 3*changeEvery {
		t.Errorf("%d changes are applied within %s", sent, took)
	}

	stranger := newNeighbour(t)
	stranger.link.Trust = peer.TrustLAN
	s = New(Config{ID: "me", Fabric: func() Fabric { return stranger }, Setting: s.Setting})
	go s.follow(t.Context())
	var many []Export
	for i := range 200 {
		e := theirs("shop", fmt.Sprintf("web-%d", i), true)
		e.Annotations = map[string]string{"note": strings.Repeat("x", maxValue)}
		many = append(many, e)
	}
	go stranger.exports(many...)
	await.NoError(t, t.Context(), time.Minute, "much of a stranger is not taken", func() error {
		_, faults, _ := s.contributions()
		if !strings.Contains(faults[other], "here: rivulet approve") {
			return fmt.Errorf("%v", faults)
		}
		return nil
	})
}
