package api

import "time"

// Upgrade is the progress of an upgrade, and the result of the last one.
type Upgrade struct {
	Phase string    `json:"phase"` // idle, staged, trying, returning
	To    string    `json:"to,omitempty"`
	From  string    `json:"from,omitempty"`
	Until time.Time `json:"until,omitzero"` // end of the trial
	// HeldBy are the pods that delay a staged upgrade.
	HeldBy []string `json:"heldBy,omitempty"`
	Last   any      `json:"last,omitempty"` // update.Outcome
}

// UpgradeRequest starts a staged upgrade.
type UpgradeRequest struct {
	Now bool `json:"now"` // even if pods hold it
}
