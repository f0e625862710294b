package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"rivulet/appliance/machine/clock"
)

// ClockRequest is the body of POST /v1/clock, which only root and signed-in administrators of the web console can send.
type ClockRequest struct {
	Now time.Time `json:"now"`
}

// Clock registers the route by which an administrator sets the clock.
func Clock(mux *http.ServeMux, c *clock.Clock) {
	mux.Handle("POST /v1/clock", JSON(func(r *http.Request) (any, error) {
		var q ClockRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			return nil, fmt.Errorf("the time is not understood: %w; load the page again", err)
		}
		return struct{}{}, c.SetTo(q.Now)
	}))
}
