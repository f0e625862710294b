package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"rivulet/offload/consumer/move"
)

// Move is one line of the answer to POST /v1/volumes/move. The last one is Over; with Error the data are in their old
// place.
type Move struct {
	move.Progress
	Over  bool   `json:"over,omitempty"`
	Error string `json:"error,omitempty"`
}

// progressEvery is the interval of progress lines of a move.
const progressEvery = 500 * time.Millisecond

// MoveRoute answers with a line for each step of the move that start begins. The move continues when the client is
// gone.
func MoveRoute(start func(context.Context, move.Request) (*move.Job, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var want move.Request
		var job *move.Job
		err := json.NewDecoder(r.Body).Decode(&want)
		if err == nil {
			job, err = start(r.Context(), want)
		}
		if err != nil {
			JSON(func(*http.Request) (any, error) { return nil, err }).ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		lines := json.NewEncoder(w)
		say := func(done bool) bool {
			p := Move{Progress: job.Progress(), Over: done}
			if err := job.Err(); done && err != nil {
				p.Error = err.Error()
			}
			err := lines.Encode(p)
			return errors.Join(err, http.NewResponseController(w).Flush()) == nil
		}
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for say(false) {
			select {
			case <-r.Context().Done():
				return
			case <-job.Ended():
				say(true)
				return
			case <-tick.C:
			}
		}
	})
}

// KeptVolume is the body of POST /v1/volumes/adopt and /v1/volumes/delete.
type KeptVolume struct {
	// Ref is that of volume.Kept.
	Ref string `json:"ref"`
	// As is the name of the adopted claim; empty is the one that the data were made for.
	As string `json:"as,omitempty"`
}
