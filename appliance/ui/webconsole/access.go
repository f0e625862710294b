package webconsole

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"rivulet/appliance/config/signin"
)

// The bounds of sign-in.
const (
	// CodeLife is the validity of a code of `rivulet console login`.
	CodeLife = 10 * time.Minute
	// A session ends after sessionLife, or sessionIdle without a request.
	sessionLife, sessionIdle = 30 * 24 * time.Hour, 7 * 24 * time.Hour
	// maxCodes and maxSessions bound what is stored; the oldest is replaced.
	maxCodes, maxSessions = 16, 64
	// attempts bounds failed sign-ins of one address in a minute, allAttempts those of all that are remembered.
	attempts, allAttempts = 10, 120
	// seenEvery is the least time between two writes of a session's last use.
	seenEvery = time.Hour
	note      = "console"
)

// Role is what a session may do.
type Role string

// The roles, from the least to the most rights.
const (
	View    Role = "view"    // reads
	Operate Role = "operate" // decides about peers, offloading and virtual clusters
	Admin   Role = "admin"   // all rights of root here
)

// Roles are all roles, from the least to the most rights.
var Roles = []Role{View, Operate, Admin}

// Includes reports whether a role has the rights of another.
func (r Role) Includes(other Role) bool {
	return slices.Contains(Roles, r) && slices.Index(Roles, r) >= slices.Index(Roles, other)
}

// Store keeps the sessions; see package bolt.
type Store interface {
	Note(name string) ([]byte, error) // nil if there is none
	PutNote(name string, blob []byte) error
	// CopyError returns why deleted data may return after damage.
	CopyError() error
}

// login is an unused code.
type login struct {
	Hash    string    `json:"hash"`
	Role    Role      `json:"role"`
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
}

// Session is one browser that is signed in.
type Session struct {
	ID   string `json:"id"`
	Hash string `json:"hash,omitempty"` // of its token
	Role Role   `json:"role"`
	// Browser is the name that the browser gives itself, From its address at sign-in.
	Browser string `json:"browser"`
	From    string `json:"from"`
	// Card is the hash of the configuration's code, if that was used: the session ends when another is there.
	Card string    `json:"card,omitempty"`
	Made time.Time `json:"made"`
	Seen time.Time `json:"seen"`
	// Renewed is when an administrator let it go on for another sessionLife.
	Renewed time.Time `json:"renewed,omitzero"`
}

// End is the time at which the session ends even if it is used.
func (s Session) End() time.Time {
	if s.Renewed.After(s.Made) {
		return s.Renewed.Add(sessionLife)
	}
	return s.Made.Add(sessionLife)
}

// early: the clock is before what the session says of the past, so nothing that it says can be judged.
func (s Session) early(now time.Time) bool {
	return now.Before(s.Made.Add(-sessionIdle)) || now.Before(s.Renewed.Add(-sessionIdle))
}

// valid reports whether the session has not ended; a clock before its creation is as bad as one past its end.
func (s Session) valid(now time.Time) bool {
	return now.Before(s.End()) && now.Before(s.Seen.Add(sessionIdle)) && !s.early(now)
}

// access has the codes and sessions.
type access struct {
	store Store
	now   func() time.Time

	mu  sync.Mutex
	bad error // the note is unreadable: nobody signs in, nothing is written
	stored
	card   string                 // hash of the configuration's code; empty: none
	failed map[string][]time.Time // attempts of the last minute, by address
}

// stored is the note.
type stored struct {
	Codes    []login   `json:"codes,omitempty"`
	Sessions []Session `json:"sessions,omitempty"`
}

func loadAccess(s Store, now func() time.Time) *access {
	a := &access{store: s, now: now, failed: map[string][]time.Time{}}
	blob, err := s.Note(note)
	if err == nil && blob != nil {
		err = json.Unmarshal(blob, &a.stored)
	}
	if err != nil {
		a.stored = stored{} // nobody is signed in by half a list
		a.bad = fmt.Errorf("the list of sign-ins cannot be read: %w; save the output of rivulet support, then: sudo rivulet doctor", err)
	}
	return a
}

// save is called with mu held. What has ended is left out.
func (a *access) save() error {
	if a.bad != nil {
		return a.bad
	}
	now := a.now()
	a.Codes = slices.DeleteFunc(a.Codes, func(c login) bool { return !now.Before(c.Expires) || now.Before(c.Made.Add(-CodeLife)) })
	a.Sessions = slices.DeleteFunc(a.Sessions, func(s Session) bool { return !s.valid(now) })
	blob, err := json.Marshal(a.stored)
	if err == nil {
		err = a.store.PutNote(note, blob)
	}
	if err != nil {
		return fmt.Errorf("the sign-in cannot be stored: %w; see: rivulet doctor", err)
	}
	return nil
}

// newCode makes a code that is valid once, within CodeLife.
func (a *access) newCode(role Role) (signin.Code, time.Time, error) {
	if !slices.Contains(Roles, role) {
		return signin.Code{}, time.Time{}, fmt.Errorf("there is no role %.40q; use view, operate or admin", role)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	code, now := signin.New(), a.now()
	if len(a.Codes) >= maxCodes {
		a.Codes = slices.Delete(a.Codes, 0, len(a.Codes)-maxCodes+1)
	}
	a.Codes = append(a.Codes, login{code.Hash(), role, now, now.Add(CodeLife)})
	return code, now.Add(CodeLife), a.save()
}

// errCode tells a stranger nothing about the codes that there are.
var errCode = errors.New("this code is not valid here: codes work once, for ten minutes; make another with: sudo rivulet console login")

// signIn exchanges a code for a token.
func (a *access) signIn(text, from, browser string) (token string, s Session, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bad != nil {
		return "", s, a.bad
	}
	now := a.now()
	if err := a.wait(from, now); err != nil {
		return "", s, err
	}
	code, err := signin.Parse(text)
	role, card := Role(""), ""
	if err == nil {
		role, card = a.redeem(code.Hash(), now)
	}
	if role == "" {
		if a.allFailed() < allAttempts {
			a.failed[from] = append(a.failed[from], now)
		}
		return "", s, cmp.Or(err, errCode)
	}
	raw := make([]byte, 36)
	_, _ = rand.Read(raw) // it cannot fail
	token = hex.EncodeToString(raw[4:])
	s = Session{ID: hex.EncodeToString(raw[:4]), Hash: hashOf(token), Role: role, Browser: browserName(browser), From: from, Card: card, Made: now, Seen: now}
	if len(a.Sessions) >= maxSessions { // that which was unused the longest
		oldest := slices.MinFunc(a.Sessions, func(x, y Session) int { return x.Seen.Compare(y.Seen) })
		a.end(func(s Session) bool { return s.ID == oldest.ID })
	}
	a.Sessions = append(a.Sessions, s)
	if err := a.save(); err != nil {
		a.Sessions = a.Sessions[:len(a.Sessions)-1]
		return "", Session{}, err
	}
	return token, s, nil
}

// wait refuses an address with too many failed attempts, which are forgotten after a minute. Those of others keep no
// address out that has none itself: a neighbour may have any number of addresses.
func (a *access) wait(from string, now time.Time) error {
	for addr, times := range a.failed {
		times = slices.DeleteFunc(times, func(t time.Time) bool { return now.Sub(t) > time.Minute || t.After(now) })
		if a.failed[addr] = times; len(times) == 0 {
			delete(a.failed, addr)
		}
	}
	if own := len(a.failed[from]); own >= attempts || own > 0 && a.allFailed() >= allAttempts {
		return errors.New("too many wrong codes; wait a minute, and try again")
	}
	return nil
}

func (a *access) allFailed() (n int) {
	for _, times := range a.failed {
		n += len(times)
	}
	return n
}

// redeem returns the role of a code, and uses it up; the configuration's works until it is removed there.
func (a *access) redeem(hash string, now time.Time) (role Role, card string) {
	if a.card != "" && hash == a.card {
		return Admin, hash
	}
	for i, c := range a.Codes {
		if c.Hash == hash && now.Before(c.Expires) && !now.Before(c.Made.Add(-time.Minute)) {
			a.Codes = slices.Delete(a.Codes, i, i+1)
			return c.Role, ""
		}
	}
	return "", ""
}

// find returns the session of a token.
func (a *access) find(token string) (Session, bool) {
	if len(token) > 128 {
		return Session{}, false
	}
	hash := hashOf(token)
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	for i := range a.Sessions {
		s := &a.Sessions[i]
		if s.Hash == hash && s.valid(now) {
			return a.use(s, now), true
		}
	}
	return Session{}, false
}

// use is called with mu held.
func (a *access) use(s *Session, now time.Time) Session {
	if now.Sub(s.Seen) <= seenEvery {
		return *s
	}
	s.Seen = now
	found := *s  // save moves the sessions
	_ = a.save() // it is stored with the next use
	return found
}

// used returns the session with the ID if it has not ended. What is open and goes on is a use of it.
func (a *access) used(id string) (Session, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	for i := range a.Sessions {
		if s := &a.Sessions[i]; s.ID == id && s.valid(now) {
			return a.use(s, now), true
		}
	}
	return Session{}, false
}

// valid reports whether the session with the ID has not ended.
func (a *access) valid(id string) bool {
	_, ok := a.used(id)
	return ok
}

// renew lets a session that may only read go on for another sessionLife, for a screen on a wall.
func (a *access) renew(id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	for i := range a.Sessions {
		switch s := &a.Sessions[i]; {
		case s.ID != id || !s.valid(now):
		case s.Role != View:
			return fmt.Errorf("it has the role %s, and only those that read are renewed: sign in again with a new code", s.Role)
		default:
			before := s.Renewed
			s.Renewed = now
			err := a.save() // moves the sessions
			for i := range a.Sessions {
				if err != nil && a.Sessions[i].ID == id {
					a.Sessions[i].Renewed = before
				}
			}
			return err
		}
	}
	return fmt.Errorf("there is no sign-in %.40q; see: rivulet console list", id)
}

// list returns the sessions, the latest first.
func (a *access) list() []Session {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	out := slices.DeleteFunc(slices.Clone(a.Sessions), func(s Session) bool { return !s.valid(now) })
	slices.SortFunc(out, func(x, y Session) int { return y.Made.Compare(x.Made) })
	return out
}

// signOut ends one session, or with an empty ID all.
func (a *access) signOut(id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.end(func(s Session) bool { return id == "" || s.ID == id }) {
		return fmt.Errorf("there is no sign-in %.40q; see: rivulet console list", id)
	}
	return errors.Join(a.save(), a.store.CopyError())
}

// end is called with mu held.
func (a *access) end(is func(Session) bool) bool {
	n := len(a.Sessions)
	a.Sessions = slices.DeleteFunc(a.Sessions, is)
	return len(a.Sessions) < n
}

// configure takes the hash of the configuration's code; sessions by another one end.
func (a *access) configure(hash string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.card = hash
	if a.end(func(s Session) bool { return s.Card != "" && s.Card != hash }) {
		return errors.Join(a.save(), a.store.CopyError())
	}
	return nil
}

// hashOf is the stored form of a token.
func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// browserName names a browser and its system by its User-Agent, which anybody may write.
func browserName(agent string) string {
	if len(agent) > 512 {
		agent = agent[:512]
	}
	first := func(words ...[2]string) string {
		for _, w := range words {
			if strings.Contains(agent, w[0]) {
				return w[1]
			}
		}
		return ""
	}
	browser := first([2]string{"Edg/", "Edge"}, [2]string{"Firefox/", "Firefox"}, [2]string{"Chrome/", "Chrome"}, [2]string{"Safari/", "Safari"}, [2]string{"curl/", "curl"})
	system := first([2]string{"Android", "Android"}, [2]string{"iPhone", "iPhone"}, [2]string{"iPad", "iPad"}, [2]string{"Windows", "Windows"}, [2]string{"Mac OS", "macOS"}, [2]string{"Linux", "Linux"})
	switch {
	case browser != "" && system != "":
		return browser + " on " + system
	default:
		return cmp.Or(browser, system, "a browser")
	}
}
