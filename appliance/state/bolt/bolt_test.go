package bolt

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"rivulet/fabric/peer"
	"rivulet/fabric/wgkey"
)

func TestPeersSurviveReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	want := peer.Record{ID: "b", Name: "pi", PeerMappedCIDR: netip.MustParsePrefix("10.130.0.0/16"), Certificate: []byte{1}}
	for _, r := range []peer.Record{{ID: "a"}, {ID: "b"}, want} {
		if err := s.PutPeer(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.DeletePeer("a"); err != nil {
		t.Fatal(err)
	}
	if err := s.PutIdentity([]byte("me")); err != nil {
		t.Fatal(err)
	}
	s.Close()

	s, err = Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := s.Peers()
	if err != nil || !reflect.DeepEqual(got, []peer.Record{want}) {
		t.Fatalf("Peers() = %+v, %v; want just %+v", got, err, want)
	}
	if id, err := s.Identity(); string(id) != "me" || err != nil {
		t.Fatalf("Identity() = %q, %v", id, err)
	}
}

// A record of an older version whose key cannot be used takes neither the other records
// nor itself along.
func TestABadKeyIsLeftOut(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	good := peer.Record{ID: "a", Name: "a", WireGuardKey: key.Public()}
	if err := s.PutPeer(good); err != nil {
		t.Fatal(err)
	}
	if err := s.put(bucketPeers, []byte("b"), []byte(`{"id":"b","name":"b","wireguardKey":"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}`)); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Peers(); err != nil || !reflect.DeepEqual(got, []peer.Record{good, {ID: "b", Name: "b"}}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestSecondOpenSaysInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := Open(path); !errors.Is(err, ErrInUse) {
		t.Fatalf("second Open: %v, want ErrInUse", err)
	}
}

// Damage of several kinds is told as such, with a cure, and the file is left as it was.
func TestDamageIsToldAndNothingIsChanged(t *testing.T) {
	good := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(good)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 { // enough for several pages
		if err := s.PutPeer(peer.Record{ID: peer.ID(fmt.Sprintf("%d", i)), Certificate: make([]byte, 600)}); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	sound, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(from, to int) []byte {
		b := bytes.Clone(sound)
		for i := from; i < to && i < len(b); i++ {
			b[i] ^= 0x5a
		}
		return b
	}
	page := os.Getpagesize()
	for name, content := range map[string][]byte{
		"text instead of a database":  []byte(strings.Repeat("not a database\n", 1000)),
		"both meta pages":             flip(0, 2*page),
		"data pages":                  flip(2*page, len(sound)),
		"one block":                   []byte("x"),
		"empty":                       {},
		"all but three pages cut off": sound[:3*page],
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(path)
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "mv ") {
				t.Fatalf("Open: %v, want ErrDamaged with a cure", err)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(after, content) {
				t.Fatal("the damaged file was changed")
			}
		})
	}
}

// Whichever single page is hit, Open says so or what it opens is whole: it never
// takes the process with it.
func TestAnyDamagedPage(t *testing.T) {
	good := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(good)
	if err != nil {
		t.Fatal(err)
	}
	const records = 60
	for i := range records {
		if err := s.PutPeer(peer.Record{ID: peer.ID(fmt.Sprintf("%d", i)), Certificate: make([]byte, 600)}); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	sound, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	told := 0
	for at := 0; at < len(sound); at += page {
		for _, damage := range []string{"\x00", "\xff", "\x5a", "cut off"} {
			content := bytes.Clone(sound)
			if damage == "cut off" {
				content = content[:at]
			} else {
				copy(content[at:], strings.Repeat(damage, page))
			}
			path := filepath.Join(t.TempDir(), "state.db")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Open(path)
			if err != nil {
				told++
				if !errors.Is(err, ErrDamaged) {
					t.Errorf("page %d: %v, want ErrDamaged", at/page, err)
				}
				continue
			}
			if got, err := s.Peers(); err != nil || len(got) < records-1 {
				t.Errorf("page %d: %d of %d records, %v", at/page, len(got), records, err)
			}
			s.Close()
		}
	}
	if told == 0 {
		t.Error("no damage was noticed")
	}
}
