package external

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// tokenLife is the validity of a token that is a JWT, such as those of service accounts and identity providers. The
// token is not verified, which is left to the server.
func tokenLife(token string) (from, to time.Time) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return from, to
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return from, to
	}
	var claims struct {
		Exp float64 `json:"exp"`
		Iat float64 `json:"iat"`
	}
	if json.Unmarshal(raw, &claims) != nil {
		return from, to
	}
	return instant(claims.Iat), instant(claims.Exp)
}

// instant is the zero time for an invalid date.
func instant(seconds float64) time.Time {
	if seconds <= 0 || seconds > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0)
}
