package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/consumer/pod/translate"
)

func TestWhenTokensAreRenewed(t *testing.T) {
	now := time.Now()
	for _, c := range []struct{ life, want time.Duration }{{time.Hour, 48 * time.Minute}, {10 * time.Minute, 8 * time.Minute}, {365 * 24 * time.Hour, 24 * time.Hour}} {
		if got := renewAt(now, now.Add(c.life)).Sub(now); got != c.want {
			t.Errorf("one that lives %s is renewed after %s, want %s", c.life, got, c.want)
		}
	}
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{renewAnnotation: now.Add(time.Hour).Format(time.RFC3339)}}, Data: map[string][]byte{"token-0": nil}}
	if got := due(s, []translate.Token{{Key: "token-0"}}); got.Sub(now).Round(time.Minute) != time.Hour {
		t.Errorf("due %s", got)
	}
	if got := due(s, []translate.Token{{Key: "token-0"}, {Key: "token-1"}}); !got.IsZero() {
		t.Errorf("a token that is missing can wait until %s", got)
	}
	s.Annotations = nil
	if got := due(s, nil); !got.IsZero() {
		t.Errorf("nobody knows how old they are, and they can wait until %s", got)
	}
}
