package offer

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// beat is the heartbeat that the consumer has requested, between Heartbeat and Calm.
func beat(r *http.Request) time.Duration {
	n, err := strconv.Atoi(r.URL.Query().Get(BeatQuery))
	if err != nil {
		return Heartbeat
	}
	return time.Duration(min(max(n, int(Heartbeat/time.Second)), int(Calm/time.Second))) * time.Second
}

// Stream answers GET /v1/offer with one line of JSON at once, after every relevant change, and every Heartbeat, or less
// often if the consumer has requested it. It returns when the request's context ends or the consumer stops reading.
func Stream(w http.ResponseWriter, r *http.Request, current func() Offer, changed <-chan struct{}) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)

	interval := beat(r)
	heartbeat := time.NewTicker(interval)
	defer heartbeat.Stop()
	var last []byte
	for beat := true; ; {
		line, err := json.Marshal(current())
		if err != nil {
			return // an Offer always marshals
		}
		if beat || !bytes.Equal(line, last) {
			// A consumer that vanished must not block this goroutine for ever.
			_ = out.SetWriteDeadline(time.Now().Add(2 * Heartbeat))
			if _, err := w.Write(append(line, '\n')); err != nil {
				return
			}
			if err := out.Flush(); err != nil {
				return
			}
			_ = out.SetWriteDeadline(time.Time{}) // HTTP/2 would end the stream then, although nothing waits
			last = line
			heartbeat.Reset(interval)
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
			beat = false
		case <-heartbeat.C:
			beat = true
		}
	}
}
