package trust

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"rivulet/fabric/peer"
)

const (
	// InviteLife is how long an invite can be used.
	InviteLife = 10 * time.Minute
	// inviteMemory is how long it is known afterwards, so that its user is told why
	// it is not taken any more.
	inviteMemory = 24 * time.Hour
	// SecretLen is the length of an invite's secret, bytes.
	SecretLen = 16
)

// Why an invite is not taken.
var (
	ErrInviteUnknown = errors.New("this cluster has made no such invite, or long ago")
	ErrInviteExpired = errors.New("the invite has expired")
	ErrInviteRevoked = errors.New("the invite was revoked")
	ErrInviteUsed    = errors.New("the invite was used already, by another cluster")
)

// Invite is what may be shown of one.
type Invite struct {
	ID      string    `json:"id"` // names it, and does not help to use it
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
	Revoked bool      `json:"revoked,omitempty"`
	UsedBy  peer.ID   `json:"usedBy,omitempty"`
	UsedAt  time.Time `json:"usedAt,omitzero"`
}

// State says in a word where it stands.
func (i Invite) State(now time.Time) string {
	switch {
	case i.UsedBy != "":
		return "used"
	case i.Revoked:
		return "revoked"
	case i.expired(now):
		return "expired"
	}
	return "open"
}

// A clock that went back before it was made is as bad as one that is past its end.
func (i Invite) expired(now time.Time) bool {
	return !now.Before(i.Expires) || now.Before(i.Made.Add(-time.Minute))
}

// entry is an invite as it is kept: the secret itself is not.
type entry struct {
	Invite
	Hash []byte `json:"hash"`
}

func hash(secret []byte) []byte {
	sum := sha256.Sum256(append([]byte("rivulet invite\x00"), secret...))
	return sum[:]
}

// NewInvite makes one. The secret is returned and not kept.
func (b *Store) NewInvite(now time.Time) (Invite, []byte, error) {
	secret := make([]byte, SecretLen)
	rand.Read(secret)
	h := hash(secret)
	i := Invite{ID: hex.EncodeToString(h[:4]), Made: now, Expires: now.Add(InviteLife)}
	err := b.change(func(c *content) {
		c.Invites = slices.DeleteFunc(c.Invites, func(e entry) bool { return now.After(e.Expires.Add(inviteMemory)) })
		c.Invites = append(c.Invites, entry{i, h})
	})
	return i, secret, err
}

// Invites returns all that are known, the oldest first.
func (b *Store) Invites() (out []Invite) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.c.Invites {
		out = append(out, e.Invite)
	}
	return out
}

// RevokeInvite ends an invite that nobody has used.
func (b *Store) RevokeInvite(id string) error {
	b.mu.Lock()
	i := slices.IndexFunc(b.c.Invites, func(e entry) bool { return e.ID == id })
	used := i >= 0 && b.c.Invites[i].UsedBy != ""
	b.mu.Unlock()
	switch {
	case i < 0:
		return fmt.Errorf("there is no invite %q; see: rivulet invite list", id)
	case used:
		return fmt.Errorf("invite %s was used already; end the peering with: rivulet unpeer NAME", id)
	}
	return b.change(func(c *content) {
		for i := range c.Invites {
			if c.Invites[i].ID == id && c.Invites[i].UsedBy == "" {
				c.Invites[i].Revoked = true
			}
		}
	})
}

// Redeem takes an invite for the cluster, once. The same cluster may come again with it
// while it lives: its answer may have been lost.
func (b *Store) Redeem(secret []byte, by peer.ID, now time.Time) error {
	want := hash(secret)
	b.mu.Lock()
	// What is compared is the hash of 128 random bits: its timing helps nobody.
	i := slices.IndexFunc(b.c.Invites, func(e entry) bool { return slices.Equal(e.Hash, want) })
	var e entry
	if i >= 0 {
		e = b.c.Invites[i]
	}
	b.mu.Unlock()
	switch {
	case i < 0:
		return ErrInviteUnknown
	case e.UsedBy != "" && e.UsedBy != by:
		return ErrInviteUsed
	case e.Revoked:
		return ErrInviteRevoked
	case e.expired(now):
		return ErrInviteExpired
	case e.UsedBy == by:
		return nil
	}
	return b.take(want, by, now)
}

// take is the second half of Redeem: another cluster may have been faster since the invite
// was looked at.
func (b *Store) take(want []byte, by peer.ID, now time.Time) error {
	taken := false
	err := b.change(func(c *content) {
		for i := range c.Invites {
			if x := &c.Invites[i]; slices.Equal(x.Hash, want) && x.UsedBy == "" && !x.Revoked {
				x.UsedBy, x.UsedAt, taken = by, now, true
			}
		}
	})
	if err == nil && !taken {
		return ErrInviteUsed
	}
	return err
}
