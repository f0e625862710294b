package pairing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

// change gives the node another pair of keys, as rotation does.
func (s *node) change(present, next byte) {
	s.keys = [2]wgkey.Private{keyOf(present)}
	if next != 0 {
		s.keys[1] = keyOf(next)
	}
	s.self.WireGuardKey, s.self.NextWireGuardKey = s.keys[0].Public(), s.keys[1].Public()
}

func exchanged(t *testing.T, a, b *node) {
	t.Helper()
	if _, err := a.Exchange(t.Context(), wire(a, b)); err != nil {
		t.Fatal(err)
	}
	agreed(t, a, b)
}

// Both sides have proved their keys after the first exchange, and after changes of keys
// that neither has heard of before; a side of an older version is a peer without a proof.
func TestKeysAreProved(t *testing.T) {
	a, b := newNode(1), newNode(2)
	proved := func(what string, next bool) {
		t.Helper()
		for _, r := range []struct{ by, of *node }{{a, b}, {b, a}} {
			if got := r.by.disk[r.of.self.ID]; !got.KeyProved || got.NextKeyProved != next {
				t.Errorf("%s: %s has of %s: proved %v, the next %v, want %v", what, r.by.self.Name, r.of.self.Name, got.KeyProved, got.NextKeyProved, next)
			}
		}
	}
	exchanged(t, a, b)
	proved("first", false)
	a.change(1, 11)
	b.change(2, 12)
	exchanged(t, b, a)
	proved("next keys", true)
	a.change(11, 0)
	b.change(12, 0)
	exchanged(t, b, a)
	proved("changed", false)
	a.change(21, 0) // each while the other was away
	b.change(22, 0)
	exchanged(t, a, b)
	proved("changed unheard", false)

	a, old := newNode(1), newNode(3)
	old.speaks = 2 // without proofs
	exchanged(t, a, old)
	exchanged(t, old, a)
	if a.disk[old.self.ID].KeyProved || old.disk[a.self.ID].KeyProved {
		t.Error("a version without proofs proves")
	}
}

// What proves nothing: the proof of another cluster, for another one, of another key, with
// another's key, or changed. A peer that proves its keys and has none for a new one keeps
// what it had.
func TestWhatIsNoProof(t *testing.T) {
	a, b, c := newNode(1), newNode(2), newNode(3)
	exchanged(t, a, b)
	own, theirs := keyOf(9), b.self.WireGuardKey
	right := possession(own.Shared(theirs), own.Public(), theirs, a.self.ID, b.self.ID)
	if !b.Self().possesses(a.self.ID, own.Public(), right) {
		t.Fatal("the right proof is not taken: this tests nothing")
	}
	for name, proof := range map[string][]byte{
		"none":                     nil,
		"of another cluster":       possession(own.Shared(theirs), own.Public(), theirs, c.self.ID, b.self.ID),
		"for another cluster":      possession(own.Shared(theirs), own.Public(), theirs, a.self.ID, c.self.ID),
		"for another's key":        possession(own.Shared(c.self.WireGuardKey), own.Public(), c.self.WireGuardKey, a.self.ID, b.self.ID),
		"with a key of another":    possession(keyOf(1).Shared(theirs), own.Public(), theirs, a.self.ID, b.self.ID),
		"the other way round":      possession(own.Shared(theirs), theirs, own.Public(), b.self.ID, a.self.ID),
		"of a secret that is zero": possession(make([]byte, 32), own.Public(), theirs, a.self.ID, b.self.ID),
		"cut off":                  right[:31],
		"a bit":                    append([]byte{right[0] ^ 1}, right[1:]...),
	} {
		m := a.call(b.sender())
		m.WireGuardKey, m.KeyProof = own.Public(), proof
		if _, err := b.Receive(a.sender(), m); err != nil {
			t.Errorf("%s: %v, want an answer with which it can prove the key", name, err)
		}
		if r := b.disk[a.self.ID]; r.WireGuardKey != a.self.WireGuardKey || !r.KeyProved {
			t.Errorf("%s: the key is taken", name)
		}
		m = a.call(b.sender())
		m.NextWireGuardKey, m.NextKeyProof = own.Public(), proof
		if _, err := b.Receive(a.sender(), m); err != nil {
			t.Errorf("%s as the next one: %v", name, err)
		}
		if r := b.disk[a.self.ID]; !r.NextWireGuardKey.IsZero() {
			t.Errorf("%s: the next key is taken", name)
		}
	}
	m := a.call(b.sender())
	m.WireGuardKey, m.KeyProof = own.Public(), right
	if _, err := b.Receive(a.sender(), m); err != nil || b.disk[a.self.ID].WireGuardKey != own.Public() {
		t.Errorf("the right proof: %v", err)
	}
	m.KeyProof = bytes.Repeat(right, 3)
	if m.check() == nil {
		t.Error("a proof of any length")
	}
}

// A stranger whose key another one claims without a proof hears what it needs to prove it,
// and is remembered only then; one of an older version is refused.
func TestAContestedKeyIsProvedFirst(t *testing.T) {
	for _, speaks := range []int{0, 2} {
		a, b := newNode(1), newNode(2)
		a.speaks = speaks
		b.claim = func(r peer.Record) error {
			if r.KeyProved {
				return nil
			}
			return errors.Join(ErrContested, &rpc.Error{Code: "same-key", Message: "taken"})
		}
		posts := 0
		_, err := a.Exchange(t.Context(), func(ctx context.Context, say func(Sender) Message) (Message, Sender, error) {
			if posts++; posts == 2 && len(b.disk) > 0 {
				t.Error("a claim without a proof is remembered")
			}
			return wire(a, b)(ctx, say)
		})
		if speaks == 0 {
			if err != nil {
				t.Fatal(err)
			}
			agreed(t, a, b)
		} else if Code(err) != "same-key" || len(b.disk) > 0 {
			t.Errorf("an older version: %v", err)
		}
	}
}

// What a message proves never leaves with what it says.
func TestNoSecretIsEncoded(t *testing.T) {
	key, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	self := Self{Name: "lab-1", Private: key, NextPrivate: key, Group: &GroupKey{}}
	text, err := json.Marshal(self)
	if err != nil || !strings.Contains(string(text), "lab-1") {
		t.Fatalf("%s: %v", text, err)
	}
	for _, secret := range []string{key.Text(), "Private", "Group"} {
		if strings.Contains(string(text), secret) || strings.Contains(fmt.Sprintf("%v %#v", self, self), key.Text()) {
			t.Errorf("%s is in %s", secret, text)
		}
	}
}
