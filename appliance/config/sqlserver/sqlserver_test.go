package sqlserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

const canary = "CANARY"

func TestParse(t *testing.T) {
	for address, want := range map[string]string{
		"postgres://rivulet:CANARY@db.example/lab":                         "PostgreSQL at db.example:5432, database lab",
		"postgres://rivulet:CANARY@[2001:db8::7]:5433/lab?sslmode=disable": "PostgreSQL at [2001:db8::7]:5433, database lab",
		"postgres://rivulet@db.example/lab":                                "PostgreSQL at db.example:5432, database lab",
		"mysql://rivulet:CAN@RY/x@tcp(db.example:3306)/lab":                "MySQL at db.example:3306, database lab",
		"mysql://rivulet:CANARY@tcp(db.example)/lab?tls=skip-verify":       "MySQL at db.example:3306, database lab",
	} {
		if s, err := Parse(address); err != nil || s.String() != want || s.User != "rivulet" {
			t.Errorf("%s is %q of user %q, %v, want %q", address, s, s.User, err, want)
		}
	}
	for address, want := range map[string]string{
		"postgresql://rivulet:CANARY@db/lab":      "neither PostgreSQL nor MySQL; write postgres://",
		"sqlite:///CANARY":                        "neither PostgreSQL nor MySQL; write postgres://",
		"CANARY":                                  "neither PostgreSQL nor MySQL; write postgres://",
		"postgres://rivulet:CANARY@db":            "write postgres://USER:PASSWORD@HOST:5432/DATABASE",
		"postgres://rivulet:CANARY@/lab":          "write postgres://USER:PASSWORD@HOST:5432/DATABASE",
		"postgres://db/lab":                       "write postgres://USER:PASSWORD@HOST:5432/DATABASE",
		"postgres://rivulet:CANARY%zz@db/lab":     "as %2F %40 %23 %25",
		"postgres://rivulet:CANARY@db:x/lab":      "write postgres://USER:PASSWORD@HOST:5432/DATABASE",
		"postgres://rivulet:CANARY@db/Lab":        "in small letters",
		"mysql://rivulet:CANARY@db:3306/lab":      "write mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE",
		"mysql://rivulet:CANARY@unix(/run/s)/lab": "write mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE",
		"mysql://rivulet:CANARY@tcp(db:3306)/":    "write mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE",
		"mysql://CANARY":                          "write mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE",
		// Nobody has said that the network may see the password.
		"postgres://rivulet:CANARY@db/lab":                      "write ?sslmode=verify-full at its end, or ?sslmode=disable",
		"postgres://rivulet:CANARY@db/lab?sslmode=prefer":       "write ?sslmode=verify-full",
		"mysql://rivulet:CANARY@tcp(db:3306)/lab":               "write ?tls=true at its end, or ?tls=false",
		"mysql://rivulet:CANARY@tcp(db:3306)/lab?tls=preferred": "write ?tls=true",
	} {
		err := Check(address)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}

// How the connection is made is said, or it does not leave the machine.
func TestEncryption(t *testing.T) {
	for _, address := range []string{
		"postgres://rivulet:CANARY@db/lab?sslmode=verify-full&sslrootcert=/etc/rivulet/ca.pem", "postgres://rivulet:CANARY@db/lab?sslmode=disable",
		"postgres://rivulet:CANARY@127.0.0.1/lab", "postgres://rivulet:CANARY@localhost/lab", "postgres://rivulet:CANARY@[::1]/lab",
		"mysql://rivulet:CANARY@tcp(db)/lab?tls=true", "mysql://rivulet:CANARY@tcp(db)/lab?tls=false", "mysql://rivulet:CANARY@tcp(127.0.0.1)/lab",
	} {
		if err := Check(address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestSecrets(t *testing.T) {
	got := strings.Join(Secrets("postgres://rivulet:a%2Fb%40c@db/lab"), " ")
	for _, want := range []string{"postgres://rivulet:a%2Fb%40c@db/lab", "a/b@c", "a%2Fb%40c"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %s", got, want)
		}
	}
}

func TestExplain(t *testing.T) {
	s, err := Parse("mysql://rivulet:CANARY@tcp(db.example:3306)/lab")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{&pgconn.PgError{Code: "28P01", Message: "no"}, "MySQL at db.example:3306, database lab: no; correct the user or the password of db.example:3306 in datastore"},
		{&mysql.MySQLError{Number: 1049, Message: "no"}, "CREATE DATABASE lab"},
		{&mysql.MySQLError{Number: 1142, Message: "no"}, "give user rivulet all rights in database lab"},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "database lab: connection refused; start the SQL server at db.example:3306"},
		{fmt.Errorf("timeout: %w", context.DeadlineExceeded), "database lab: it does not answer; start the SQL server"},
		{errors.New("cut\nCANARY"), "database lab: cut; start the SQL server"},
	} {
		if got := s.Explain(c.err).Error(); !strings.Contains(got, c.want) || strings.Contains(got, canary) {
			t.Errorf("%s, want %q", got, c.want)
		}
	}
	if s.Explain(nil) != nil {
		t.Error("no error has an explanation")
	}
}

func TestNoTable(t *testing.T) {
	for _, err := range []error{&pgconn.PgError{Code: "42P01"}, fmt.Errorf("x: %w", &mysql.MySQLError{Number: 1146})} {
		if !NoTable(err) {
			t.Errorf("%v is another error", err)
		}
	}
	for _, err := range []error{nil, context.Canceled, &pgconn.PgError{Code: "42501"}, &mysql.MySQLError{Number: 1142}} {
		if NoTable(err) {
			t.Errorf("%v is that of a table that is not there", err)
		}
	}
}

func TestBind(t *testing.T) {
	p, _ := Parse("postgres://rivulet@db/lab")
	m, _ := Parse("mysql://rivulet@tcp(db)/lab")
	const statement = "a = ? AND b = ?"
	if got := p.Bind(statement); got != "a = $1 AND b = $2" {
		t.Error(got)
	}
	if got := m.Bind(statement); got != statement {
		t.Error(got)
	}
}
