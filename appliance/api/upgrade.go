package api

import "time"

// Upgrade says how far an upgrade is, and what became of the last one.
type Upgrade struct {
	Phase string    `json:"phase"` // idle, staged, trying, returning
	To    string    `json:"to,omitempty"`
	From  string    `json:"from,omitempty"`
	Until time.Time `json:"until,omitzero"` // when the trial ends
	// HeldBy names what keeps a staged upgrade waiting.
	HeldBy []string `json:"heldBy,omitempty"`
	Last   any      `json:"last,omitempty"` // update.Outcome
}

// UpgradeRequest asks the supervisor to begin what was staged.
type UpgradeRequest struct {
	Now bool `json:"now"` // whatever holds it
}
