package keyring

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/wgkey"
)

func newKey(t *testing.T) wgkey.Private {
	t.Helper()
	k, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// disk stores the keys, until it is full.
type disk struct {
	mu            sync.Mutex
	present, next string
	changed       time.Time
	full          bool
}

func (d *disk) save(present, next string, changed time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return errors.New("no space left on device")
	}
	d.present, d.next, d.changed = present, next, changed
	return nil
}

func (d *disk) get() (present, next string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.present, d.next
}

// run runs the ring with peers that take the next key only when take is closed. Sent has the keys of each message.
func run(t *testing.T, r *Ring, take chan struct{}) (sent func() []Keys) {
	var mu sync.Mutex
	var all []Keys
	peers := Peers{
		Changed: func() { mu.Lock(); defer mu.Unlock(); all = append(all, r.Now()) },
		Await: func(ctx context.Context, _ wgkey.Public) {
			select {
			case <-take:
			case <-ctx.Done():
			}
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go r.Run(ctx, peers, slog.New(slog.DiscardHandler))
	return func() []Keys { mu.Lock(); defer mu.Unlock(); return all }
}

// The next key is stored before it is sent, and becomes the present one when the peers have it, or after Patience.
func TestRotation(t *testing.T) {
	for name, answered := range map[string]bool{"peers that answer": true, "a peer that does not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old, d, take := newKey(t), &disk{}, make(chan struct{})
				r, err := Open(old.Text(), Rotation{Every: 30 * 24 * time.Hour, Changed: time.Now(), Save: d.save})
				if err != nil {
					t.Fatal(err)
				}
				sent := run(t, r, take)
				time.Sleep(30*24*time.Hour - time.Minute)
				synctest.Wait()
				if len(sent()) != 0 {
					t.Fatal("the key changes before its time")
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				present, next := d.get()
				if present != old.Text() || next == "" || len(sent()) != 1 || sent()[0].NextPublic != r.Now().Next.Public() || r.Now().Private != old {
					t.Fatalf("while peers do not have the next key: stored %t, %d messages", next != "", len(sent()))
				}
				if answered {
					close(take)
				} else {
					time.Sleep(Patience)
				}
				synctest.Wait()
				now := r.Now()
				if present, left := d.get(); present != next || left != "" || now.Private.Text() != next || !now.Next.IsZero() || len(sent()) != 2 || sent()[1].Public != now.Public {
					t.Errorf("afterwards: %d messages", len(sent()))
				}
			})
		})
	}
}

// After a power cut an unfinished rotation ends at once; with a full disk no key is used that is not stored.
func TestUnfinishedRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, d, take := newKey(t), &disk{}, make(chan struct{})
		close(take)
		r, err := Open(newKey(t).Text(), Rotation{Next: next.Text(), Save: d.save})
		if err != nil {
			t.Fatal(err)
		}
		sent := run(t, r, take)
		synctest.Wait()
		if k := r.Now(); k.Private != next || !k.Next.IsZero() {
			t.Error("the rotation has not ended")
		}
		d.mu.Lock()
		d.full = true
		d.mu.Unlock()
		before := len(sent())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Rotate(ctx); err == nil {
			t.Error("a key was changed without a disk")
		}
		if k := r.Now(); k.Private != next || !k.Next.IsZero() || len(sent()) != before {
			t.Error("a key is used that is not stored")
		}
	})
}

func TestOpenRefusesAnUnusableKey(t *testing.T) {
	for _, r := range []Rotation{{}, {Next: "x"}} {
		key := ""
		if r.Next != "" {
			key = newKey(t).Text()
		}
		if _, err := Open(key, r); err == nil {
			t.Errorf("%q, next %q: opened", key, r.Next)
		}
	}
}

// A key stays with its first owner, unless only a later claimant has proved it.
func TestClaim(t *testing.T) {
	key, other := newKey(t).Public(), newKey(t).Public()
	for name, c := range map[string]struct {
		owner       string
		has         *peer.Record // of the owner, if it is a peer
		wants       peer.Record
		code        string
		contested   bool
		left        wgkey.Public // the owner's key afterwards
		ownersSaved int
	}{
		"free":                          {wants: peer.Record{WireGuardKey: key}},
		"this cluster's":                {owner: "this cluster", wants: peer.Record{WireGuardKey: key, KeyProved: true}, code: "same-key"},
		"proved by its owner":           {owner: "b", has: &peer.Record{WireGuardKey: key, KeyProved: true}, wants: peer.Record{WireGuardKey: key, KeyProved: true}, code: "same-key"},
		"proved by none":                {owner: "b", has: &peer.Record{WireGuardKey: key}, wants: peer.Record{WireGuardKey: key}, code: "same-key", contested: true},
		"proved by the claimant":        {owner: "b", has: &peer.Record{WireGuardKey: key}, wants: peer.Record{WireGuardKey: key, KeyProved: true}, ownersSaved: 1},
		"a next key, proved":            {owner: "b", has: &peer.Record{WireGuardKey: other, NextWireGuardKey: key}, wants: peer.Record{NextWireGuardKey: key, NextKeyProved: true}, left: other, ownersSaved: 1},
		"one of two, the other is not":  {owner: "b", has: &peer.Record{WireGuardKey: key, NextWireGuardKey: other}, wants: peer.Record{WireGuardKey: key, KeyProved: true, NextWireGuardKey: other}, code: "same-key", contested: true},
		"the other of the owner proved": {owner: "b", has: &peer.Record{WireGuardKey: key, NextWireGuardKey: other, NextKeyProved: true}, wants: peer.Record{WireGuardKey: key, KeyProved: true}, left: wgkey.Public{}, ownersSaved: 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := &owner{name: c.owner, has: c.has}
			named, err := Claim(c.wants, "a", o, slog.New(slog.DiscardHandler))
			if pairing.Code(err) != c.code || errors.Is(err, pairing.ErrContested) != c.contested || (named != "") != (c.code != "") {
				t.Errorf("%v, contested %t, owner %q", err, errors.Is(err, pairing.ErrContested), named)
			}
			if o.saved != c.ownersSaved || o.saved > 0 && o.has.WireGuardKey != c.left {
				t.Errorf("the owner's record was stored %d times with the key %v", o.saved, o.has.WireGuardKey)
			}
		})
	}
}

// owner has a key; it is a peer if it has a record.
type owner struct {
	name  string
	has   *peer.Record
	saved int
}

func (o *owner) KeyOwner(_ peer.ID, keys ...wgkey.Public) (string, *peer.Record) {
	if o.has == nil {
		return o.name, nil
	}
	has := *o.has
	if !wgkey.Common(keys, KeysOf(has)) {
		return "", nil
	}
	return o.name, &has
}

func (o *owner) Save(r peer.Record) error {
	o.saved++
	o.has = &r
	return nil
}

// Of stored records with one key the older one has it, and present keys count before next ones.
func TestVetted(t *testing.T) {
	ours, key, third := newKey(t).Public(), newKey(t).Public(), newKey(t).Public()
	at := func(h int) peer.Trust { return peer.Trust{At: time.Unix(int64(h)*3600, 0)} }
	got := Vetted([]peer.Record{
		{ID: "d", Trust: at(4), WireGuardKey: ours},
		{ID: "c", Trust: at(3), WireGuardKey: third},
		{ID: "b", Trust: at(2), WireGuardKey: key},
		{ID: "a", Trust: at(1), WireGuardKey: key, NextWireGuardKey: third},
	}, Keys{Public: ours}, slog.New(slog.DiscardHandler))
	want := []wgkey.Public{key, {}, third, {}}
	for i, r := range got {
		if r.ID != peer.ID("abcd"[i:i+1]) || r.WireGuardKey != want[i] || !r.NextWireGuardKey.IsZero() {
			t.Errorf("%s: %v, next %v", r.ID, r.WireGuardKey, r.NextWireGuardKey)
		}
	}
}
