package statuspage

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"

	"rivulet/appliance/ui/summary"
)

//go:embed page.html
var source string

//go:embed page.css
var style string

//go:embed lan.html
var lanSource string

var (
	page = template.Must(template.New("page").Parse(source))
	lan  = template.Must(template.New("lan").Parse(lanSource))
)

// policy allows a browser only the page itself and its style: a script in a foreign cluster's name could not run even
// without the escaping.
var policy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
}()

// Render makes the page of a view.
func Render(v summary.View) ([]byte, error) { return render(page, v) }

// RenderLAN makes the page of all devices on the LAN.
func RenderLAN(v summary.View) ([]byte, error) { return render(lan, v) }

func render(t *template.Template, v summary.View) ([]byte, error) {
	var out bytes.Buffer
	err := t.Execute(&out, struct {
		summary.View
		Style template.CSS
	}{v, template.CSS(style)}) //nolint:gosec // it is embedded
	return out.Bytes(), err
}
