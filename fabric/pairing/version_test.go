package pairing

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"rivulet/fabric/peer"
)

// What version 1 sent and read, word for word, as long as we speak it.

const helloOf1 = `{"versions":[1],"id":%q,"name":"old","version":"0.1.0","kubeVersion":"v1.35.0","wireguardKey":"AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=",` +
	`"tunnelPort":7442,"controlPort":7442,"tunnelAddress":"10.42.255.254","podCIDR":"10.42.0.0/16","serviceCIDR":"10.43.0.0/16","seeYouAs":%q,"seenAs":%q}`

// messageOf1 are the fields that version 1 knew.
type messageOf1 struct {
	Versions      []int        `json:"versions"`
	ID            peer.ID      `json:"id"`
	Name          string       `json:"name"`
	WireGuardKey  string       `json:"wireguardKey"`
	TunnelPort    uint16       `json:"tunnelPort"`
	ControlPort   uint16       `json:"controlPort"`
	TunnelAddress netip.Addr   `json:"tunnelAddress"`
	PodCIDR       netip.Prefix `json:"podCIDR"`
	SeeYouAs      netip.Prefix `json:"seeYouAs"`
	SeenAs        netip.Prefix `json:"seenAs"`
}

// The exchange of a version 1 with us, as it begins it and as we do.
func TestVersionOneStillPeers(t *testing.T) {
	b, old := newNode(2), newNode(9)
	say := func(seeYouAs, seenAs string) messageOf1 {
		t.Helper()
		m, err := Decode(fmt.Appendf(nil, helloOf1, old.self.ID, seeYouAs, seenAs))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := b.Receive(old.sender(), m)
		if err != nil {
			t.Fatal(err)
		}
		var heard messageOf1
		if err := json.Unmarshal(encode(answer), &heard); err != nil {
			t.Fatal(err)
		}
		return heard
	}
	first := say("", "")
	if first.Versions[0] != 1 || !first.SeeYouAs.IsValid() || first.SeenAs.IsValid() || first.TunnelPort != 7442 || !first.PodCIDR.Contains(first.TunnelAddress) {
		t.Errorf("the first answer: %+v", first)
	}
	if second := say("10.99.0.0/16", first.SeeYouAs.String()); second.SeenAs.String() != "10.99.0.0/16" || second.SeeYouAs != first.SeeYouAs {
		t.Errorf("the second answer: %+v", second)
	}
	r := b.disk[old.self.ID]
	if !r.Complete() || r.Protocol != 1 || r.NoBorrow() || r.NoLend() || r.Heard != 0 {
		t.Errorf("%+v", r)
	}
	// It says the same again, and something else: both are taken, it has no numbers.
	say("10.98.0.0/16", first.SeeYouAs.String())
	if r := b.disk[old.self.ID]; r.LocalMappedCIDR.String() != "10.98.0.0/16" {
		t.Errorf("as %s", r.LocalMappedCIDR)
	}
	// It is upgraded: from now on numbers count.
	old.speaks = 0
	if _, err := b.Exchange(t.Context(), wire(b, old)); err != nil || b.disk[old.self.ID].Protocol != 2 {
		t.Errorf("after the upgrade: %v %+v", err, b.disk[old.self.ID])
	}
}

// A version 1 that says words of version 2 by chance means nothing by them.
func TestVersionOneHasNoNewWords(t *testing.T) {
	m, err := Decode(fmt.Appendf(nil, `{"invite":"AAAA","demands":"group","sequence":7,"roles":{"noProvide":true},`+helloOf1[1:], newNode(9).self.ID, "", ""))
	if err != nil || m.Invite != nil || m.Demands != "" || m.Sequence != 0 || m.Roles.NoProvide {
		t.Errorf("%+v %v", m, err)
	}
}

// N+1 talks to us by N; N+1 and N+2 alone does not, and both say who has to upgrade.
func TestNewerVersions(t *testing.T) {
	for speaks, ok := range map[int]bool{0: true, 1: true, 3: true, 4: false} {
		for _, begins := range []bool{true, false} {
			us, they := newNode(1), newNode(2)
			they.speaks = speaks
			from, to := us, they
			if begins {
				from, to = they, us
			}
			_, err := from.Exchange(t.Context(), wire(from, to))
			if (err == nil) != ok {
				t.Errorf("version %d, it begins %v: %v", speaks, begins, err)
			}
			if ok {
				agreed(t, us, they)
			} else if code := Code(err); code != "version" && code != "bad-message" || len(us.disk) != 0 {
				t.Errorf("version %d, it begins %v: %v, %d records", speaks, begins, err, len(us.disk))
			}
		}
	}
}

// A farewell that comes late does not end what has begun again since.
func TestLateFarewell(t *testing.T) {
	a, b := newNode(1), newNode(2)
	if _, err := a.Exchange(t.Context(), wire(a, b)); err != nil {
		t.Fatal(err)
	}
	end, _ := a.Farewell(b.self.ID, nil)
	if _, err := a.Exchange(t.Context(), wire(a, b)); err != nil { // they have thought better of it
		t.Fatal(err)
	}
	a.leave(b, end)
	if _, ok := b.disk[a.self.ID]; !ok {
		t.Error("an old farewell has ended a younger peering")
	}
	before := a.call(b.sender())
	end, _ = a.Farewell(b.self.ID, nil)
	late := a.call(b.sender())
	a.leave(b, end)
	if _, err := b.Receive(a.sender(), before); err != nil || len(b.disk) != 0 {
		t.Errorf("said before the farewell, and heard after it: %v, %d records", err, len(b.disk))
	}
	if _, ok := b.disk[a.self.ID]; ok {
		t.Error("the farewell was not heard")
	}
	if _, err := b.Receive(a.sender(), late); err != nil || len(b.disk) != 1 {
		t.Errorf("said after the farewell: %v", err)
	}
}
