: >"$errors" && launch
