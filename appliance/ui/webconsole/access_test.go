package webconsole

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/config/signin"
)

// memory is a store; with full set it takes nothing more.
type memory struct {
	notes map[string][]byte
	full  bool
}

func (m *memory) Note(name string) ([]byte, error) { return m.notes[name], nil }
func (m *memory) CopyError() error                 { return nil }
func (m *memory) PutNote(name string, blob []byte) error {
	if m.full {
		return errors.New("no space left on device")
	}
	if m.notes == nil {
		m.notes = map[string][]byte{}
	}
	m.notes[name] = append([]byte(nil), blob...)
	return nil
}

// accessAt is an access with a clock that the test moves.
func accessAt(m *memory) (*access, *time.Time) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	return loadAccess(m, func() time.Time { return now }), &now
}

func codeFor(t *testing.T, a *access, r Role) string {
	t.Helper()
	c, _, err := a.newCode(r)
	if err != nil {
		t.Fatal(err)
	}
	return c.String()
}

func TestACodeWorksOnceAndEnds(t *testing.T) {
	m := &memory{}
	a, now := accessAt(m)
	code := codeFor(t, a, Operate)
	token, s, err := a.signIn(strings.ToLower(code), "192.0.2.7", "Mozilla/5.0 (Linux; Android 14) Chrome/130.0 Mobile Safari/537.36")
	if err != nil || s.Role != Operate || s.Browser != "Chrome on Android" {
		t.Fatal(s, err)
	}
	if _, _, err := a.signIn(code, "192.0.2.7", ""); err == nil {
		t.Error("the code works twice")
	}
	late := codeFor(t, a, View)
	*now = now.Add(CodeLife)
	if _, _, err := a.signIn(late, "192.0.2.7", ""); err == nil {
		t.Error("the code works after its time")
	}
	if strings.Contains(string(m.notes[note]), token) || strings.Contains(string(m.notes[note]), code) {
		t.Error("the store has a token or a code")
	}
	again, _ := accessAt(m) // after a restart
	if got, ok := again.find(token); !ok || got.Role != Operate {
		t.Error("the session does not survive a restart")
	}
	if _, ok := a.find(token + "0"); ok {
		t.Error("another token is accepted")
	}
}

func TestSessionsEnd(t *testing.T) {
	for what, end := range map[string]func(t *testing.T, a *access, s Session, now *time.Time){
		"unused": func(_ *testing.T, _ *access, _ Session, now *time.Time) { *now = now.Add(sessionIdle) },
		"old": func(t *testing.T, a *access, s Session, now *time.Time) {
			for range 5 { // it is used, and kept so
				*now = now.Add(sessionIdle - time.Hour)
				for i := range a.Sessions {
					a.Sessions[i].Seen = *now
				}
			}
		},
		"signed out": func(t *testing.T, a *access, s Session, _ *time.Time) {
			if err := a.signOut(s.ID); err != nil {
				t.Error(err)
			}
		},
		"all": func(t *testing.T, a *access, _ Session, _ *time.Time) {
			if err := a.signOut(""); err != nil {
				t.Error(err)
			}
		},
		"clock before it": func(_ *testing.T, _ *access, _ Session, now *time.Time) { *now = now.Add(-8 * 24 * time.Hour) },
	} {
		m := &memory{}
		a, now := accessAt(m)
		token, s, err := a.signIn(codeFor(t, a, Admin), "192.0.2.7", "")
		if err != nil {
			t.Fatal(err)
		}
		end(t, a, s, now)
		if _, ok := a.find(token); ok || a.valid(s.ID) {
			t.Errorf("%s: the session has not ended", what)
		}
	}
}

// A sign-in that cannot be stored is none: after a restart nobody could end it.
func TestAFullDisk(t *testing.T) {
	m := &memory{}
	a, _ := accessAt(m)
	code := codeFor(t, a, Admin)
	m.full = true
	if token, _, err := a.signIn(code, "192.0.2.7", ""); err == nil || token != "" || len(a.list()) != 0 {
		t.Errorf("signed in: %v", err)
	}
}

func TestAnUnreadableNote(t *testing.T) {
	m := &memory{notes: map[string][]byte{note: []byte("{")}}
	a, now := accessAt(m)
	if _, _, err := a.newCode(Admin); err == nil {
		t.Error("a code is made")
	}
	card := signin.New()
	if err := a.configure(card.Hash()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.signIn(card.String(), "192.0.2.7", ""); err == nil {
		t.Error("somebody signs in")
	}
	if string(m.notes[note]) != "{" {
		t.Error("the note is overwritten")
	}
	// Sessions before the mistake are none, either.
	made, _ := json.Marshal(*now)
	half := &memory{notes: map[string][]byte{note: fmt.Appendf(nil, `{"sessions": [{"id": "1", "hash": %q, "role": "admin", "made": %s, "seen": %[2]s}], "codes": 5}`, hashOf("token"), made)}}
	a, _ = accessAt(half)
	if _, ok := a.find("token"); ok || len(a.list()) > 0 {
		t.Error("half a list lets somebody in")
	}
}

func TestTheCodeOfTheConfiguration(t *testing.T) {
	a, _ := accessAt(&memory{})
	card := signin.New()
	if err := a.configure(card.Hash()); err != nil {
		t.Fatal(err)
	}
	var tokens []string
	for range 2 {
		token, s, err := a.signIn(card.String(), "192.0.2.7", "")
		if err != nil || s.Role != Admin {
			t.Fatal(s, err)
		}
		tokens = append(tokens, token)
	}
	other, _, err := a.signIn(codeFor(t, a, Admin), "192.0.2.7", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.configure(""); err != nil {
		t.Fatal(err)
	}
	for _, token := range tokens {
		if _, ok := a.find(token); ok {
			t.Error("a sign-in outlives its code")
		}
	}
	if _, ok := a.find(other); !ok {
		t.Error("a sign-in by another code has ended")
	}
	if _, _, err := a.signIn(card.String(), "192.0.2.7", ""); err == nil {
		t.Error("a removed code works")
	}
}

// Wrong codes of one address do not keep others out, and those of many addresses are bounded.
func TestGuessing(t *testing.T) {
	a, now := accessAt(&memory{})
	code := codeFor(t, a, View)
	for range attempts {
		_, _, _ = a.signIn("0000-0000-0000-0000", "192.0.2.66", "")
	}
	if _, _, err := a.signIn(code, "192.0.2.66", ""); err == nil || !strings.Contains(err.Error(), "wait a minute") {
		t.Errorf("after %d wrong codes: %v", attempts, err)
	}
	if _, _, err := a.signIn(code, "192.0.2.7", ""); err != nil {
		t.Errorf("another address is kept out: %v", err)
	}
	for i := range 2 * allAttempts {
		_, _, _ = a.signIn("0000-0000-0000-0000", fmt.Sprint("2001:db8::", i), "")
	}
	all := 0
	for _, times := range a.failed {
		all += len(times)
	}
	if all > allAttempts {
		t.Errorf("%d attempts in a minute", all)
	}
	*now = now.Add(time.Minute + time.Second)
	if _, _, err := a.signIn(codeFor(t, a, View), "192.0.2.66", ""); err != nil || len(a.failed) != 0 {
		t.Errorf("after a minute: %v, %d remembered", err, len(a.failed))
	}
}

func TestBoundsOfTheStore(t *testing.T) {
	a, now := accessAt(&memory{})
	for i := range maxSessions + 5 {
		*now = now.Add(time.Second)
		if _, _, err := a.signIn(codeFor(t, a, View), fmt.Sprint(i), strings.Repeat("x", 9000)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(a.list()); n != maxSessions {
		t.Errorf("%d sessions", n)
	}
	if a.list()[0].From != fmt.Sprint(maxSessions+4) {
		t.Error("the newest was replaced")
	}
	for range maxCodes + 3 {
		codeFor(t, a, View)
	}
	if len(a.Codes) > maxCodes {
		t.Errorf("%d codes", len(a.Codes))
	}
}
