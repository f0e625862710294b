package api

import "rivulet/offload/move"

// Move is one line of the answer to POST /v1/volumes/move. The last one is Over; with
// Error the data are where they were.
type Move struct {
	move.Progress
	Over  bool   `json:"over,omitempty"`
	Error string `json:"error,omitempty"`
}
