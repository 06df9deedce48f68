module references

go 1.24
