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
	InviteLife = 10 * time.Minute
	// inviteMemory is how long an expired or used invite is stored, so that its user receives the reason of a refusal.
	inviteMemory = 24 * time.Hour
	// SecretLen is the length of an invite's secret, bytes.
	SecretLen = 16
)

// The reasons of a refused invite.
var (
	ErrInviteUnknown = errors.New("this cluster has made no such invite, or long ago")
	ErrInviteExpired = errors.New("the invite has expired")
	ErrInviteRevoked = errors.New("the invite was revoked")
	ErrInviteUsed    = errors.New("the invite was used already, by another cluster")
	ErrInviteJoin    = errors.New("it is a token to join this cluster: rivulet join TOKEN")
	ErrInvitePeer    = errors.New("it is an invite for a peer: rivulet peer --invite CODE")
)

// Invite is the public part of an invite.
type Invite struct {
	ID      string    `json:"id"` // identifies it, and does not permit its use
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
	Revoked bool      `json:"revoked,omitempty"`
	UsedBy  peer.ID   `json:"usedBy,omitempty"`
	UsedAt  time.Time `json:"usedAt,omitzero"`
	// Join: it makes a device a node of this cluster, and not a peer.
	Join bool `json:"join,omitempty"`
}

// State is its state in one word.
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

// A clock before the invite's creation counts as expired, too.
func (i Invite) expired(now time.Time) bool {
	return !now.Before(i.Expires) || now.Before(i.Made.Add(-time.Minute))
}

// entry is a stored invite: with a hash in place of the secret.
type entry struct {
	Invite
	Hash []byte `json:"hash"`
}

func hash(secret []byte) []byte {
	sum := sha256.Sum256(append([]byte("rivulet invite\x00"), secret...))
	return sum[:]
}

// NewInvite creates an invite, or with join a token for a node of this cluster. The secret is returned and not stored.
func (b *Store) NewInvite(now time.Time, life time.Duration, join bool) (Invite, []byte, error) {
	secret := make([]byte, SecretLen)
	rand.Read(secret)
	h := hash(secret)
	i := Invite{ID: hex.EncodeToString(h[:4]), Made: now, Expires: now.Add(life), Join: join}
	err := b.change(func(c *content) {
		c.Invites = slices.DeleteFunc(c.Invites, func(e entry) bool { return now.After(e.Expires.Add(inviteMemory)) })
		c.Invites = append(c.Invites, entry{i, h})
	})
	return i, secret, err
}

// Invites returns all stored ones, the oldest first.
func (b *Store) Invites() (out []Invite) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.c.Invites {
		out = append(out, e.Invite)
	}
	return out
}

// RevokeInvite revokes an unused invite.
func (b *Store) RevokeInvite(id string) error {
	if !slices.ContainsFunc(b.Invites(), func(i Invite) bool { return i.ID == id }) {
		return fmt.Errorf("there is no invite or token %q; see: rivulet invite list, rivulet token list", id)
	}
	used, join := false, false
	err := b.change(func(c *content) {
		for i := range c.Invites {
			if x := &c.Invites[i]; x.ID == id {
				used, join = x.UsedBy != "", x.Join
				x.Revoked = x.Revoked || !used
			}
		}
	})
	if used && join {
		return fmt.Errorf("token %s was used already; remove the node with: rivulet nodes remove NAME", id)
	}
	if used {
		return fmt.Errorf("invite %s was used already; end the peering with: rivulet unpeer NAME", id)
	}
	return err
}

// Redeem uses an invite for the cluster, once. The same cluster may repeat it before it expires: its answer may have
// been lost. join is what the cluster wants to use it for.
func (b *Store) Redeem(secret []byte, by peer.ID, now time.Time, join bool) error {
	want := hash(secret)
	b.mu.Lock()
	// The comparison is of hashes of 128 random bits: its timing reveals nothing useful.
	i := slices.IndexFunc(b.c.Invites, func(e entry) bool { return slices.Equal(e.Hash, want) })
	var e entry
	if i >= 0 {
		e = b.c.Invites[i]
	}
	b.mu.Unlock()
	switch {
	case i < 0:
		return ErrInviteUnknown
	case e.Join && !join:
		return ErrInviteJoin
	case join && !e.Join:
		return ErrInvitePeer
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

// take is the second half of Redeem: another cluster may have used the invite meanwhile.
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
